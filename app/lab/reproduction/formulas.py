"""Closed forms of the papers: predictions of rows, and figures that are calculated, not trained.

A prediction is a function of a run's configuration (tables nested, as config.toml has them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from coterie.app.runs.rundir import Floats
from coterie.clients.training import Training

Prediction = Callable[[Mapping[str, Any]], float]
PEERS, THRESHOLD = 20, 0.1
DEVIATIONS = (1e-3, 1e-2, 1e-1, 1.0)
DRAWS = 200


def _noisy(config: Mapping[str, Any]) -> tuple[float, ...]:
    """Return eta, a0, a1, sigma, N (of the first group) and the distance of the centres."""
    of = config["noisy-quadratic"]
    apart = float(of["helper-centre"]) - float(of["user-centre"])
    numbers = (float(of[key]) for key in ("user-curvature", "helper-curvature", "noise"))
    helpers = float(str(of["helpers"]).split(",")[0])
    return float(config["learning-rate"]), *numbers, helpers, apart


def _system(
    noisy: tuple[float, ...], eta: float, alpha: float, beta: float
) -> tuple[Floats, Floats]:
    """Return A and Q of a step of WGA or bias correction on noisy quadratics.

    Distance to the optimum e and error c of the estimated bias are a linear system with noise,

        e <- (1 - eta h) e + eta alpha c - eta ((1 - alpha) xi_0 + alpha xi_N),
        c <- (1 - beta) c + beta ((a1 - a0) e + xi_N - xi_0),

    with h = (1 - alpha) a0 + alpha a1. WGA has beta = 0: c remains the whole bias a1 (c1 - c0).
    """
    _, a0, a1, sigma, helpers, _ = noisy
    h = (1 - alpha) * a0 + alpha * a1
    step = np.array([[1 - eta * h, eta * alpha], [beta * (a1 - a0), 1 - beta]])
    own, average = np.array([-eta * (1 - alpha), -beta]), np.array([-eta * alpha, beta])
    return step, sigma**2 * (np.outer(own, own) + np.outer(average, average) / helpers)


def floor(config: Mapping[str, Any]) -> float:
    """Return the stationary loss, a0 / 2 times the mean square of e.

    The covariance solves P = A P A^T + Q, and the bias drops out; with beta = 0 e is a recursion of
    its own, and off by alpha a1 (c1 - c0) / h.
    """
    noisy = eta, a0, a1, *_, apart = _noisy(config)
    alpha, beta = _alpha_and_beta(config)
    step, noise = _system(noisy, eta, alpha, beta)
    if not beta:
        off = eta * alpha * a1 * apart / (1 - step[0, 0])
        return float(a0 / 2 * (off**2 + noise[0, 0] / (1 - step[0, 0] ** 2)))
    # vec(P) = (A x A) vec(P) + vec(Q)
    covariance = np.linalg.solve(np.eye(4) - np.kron(step, step), noise.ravel())
    return float(a0 / 2 * covariance[0])


def _theorem_1(config: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return sqrt(L sigma^2 F / T), M^2 and c of CoBo's theorem 1, per dimension.

    F is the mean over ordered pairs of a cluster of E[f_ij(z_ij) - min f_ij], where
    f_ij = (f_i + f_j) / 2 and z_ij is the midpoint of starts N(0, 1). Clusters are equal
    but for the sign of their centre.
    """
    of = config["noisy-quadratic"]
    helpers, centre = (float(str(of[key]).split(",")[0]) for key in ("helpers", "user-centre"))
    a = np.array([float(of["user-curvature"])] + [float(of["helper-curvature"])] * int(helpers))
    spread = np.where(np.eye(len(a)) > 0, 1.0, 0.5)  # variance of the midpoint
    excess = float(((a[:, None] + a) / 4 * (centre**2 + spread)).mean())
    root = np.sqrt(a.max() * float(of["noise"]) ** 2 * excess / config["num-server-rounds"])
    return float(root), float(((a.max() - a.min()) / (a.max() + a.min())) ** 2), float(len(a))


def cobo_consensus_bound(config: Mapping[str, Any]) -> float:
    """Return the bound of CoBo's theorem 1 on the consensus distance, per dimension."""
    root, m2, c = _theorem_1(config)
    return 6 * m2 / (float(config["cobo"]["rho"]) * c) ** 2 * root


def cobo_gradient_bound(config: Mapping[str, Any]) -> float:
    """Return the bound of CoBo's corollary 2 on the squared gradient norm, per dimension."""
    return 4 * _theorem_1(config)[0]


def _rates(config: Mapping[str, Any]) -> list[float]:
    keys = {field.name: field.name.replace("_", "-") for field in fields(Training)}
    training = Training(**{name: config[key] for name, key in keys.items() if key in config})
    return [training.rate(t) for t in range(1, training.num_server_rounds + 1)]


def loss(config: Mapping[str, Any]) -> float:
    """Return the expected loss after the run's last round, from e ~ N(-c0, 1) and no estimate."""
    noisy = _, a0, a1, *_, apart = _noisy(config)
    mean = np.array([-float(config["noisy-quadratic"]["user-centre"]), a1 * apart])
    covariance = np.diag([1.0, 0.0])
    for eta in _rates(config):
        step, noise = _system(noisy, eta, *_alpha_and_beta(config))
        mean, covariance = step @ mean, step @ covariance @ step.T + noise
    return float(a0 / 2 * (mean[0] ** 2 + covariance[0, 0]))


def oracle_floor(config: Mapping[str, Any]) -> float:
    """Return the stationary loss of bias correction with a noisy oracle (theorem 2).

    The step's mean is the own gradient, its variance s^2 = (1 - alpha)^2 sigma^2 + alpha^2
    (sigma^2 + v^2) / N; the loss is eta s^2 / (2 (2 - eta a0)).
    """
    eta, a0, _, sigma, helpers, _ = _noisy(config)
    options = config["bias-correction"]
    spread = float(options["oracle-noise"]) ** 2
    best = helpers / (helpers + 1 + spread / sigma**2)
    alpha = best if options["alpha"] == "auto" else float(options["alpha"])
    variance = (1 - alpha) ** 2 * sigma**2 + alpha**2 * (sigma**2 + spread) / helpers
    return eta * variance / (2 * (2 - eta * a0))


def _alpha_and_beta(config: Mapping[str, Any]) -> tuple[float, float]:
    """Return alpha and beta of a run's method, as WGA and bias correction name them.

    Alone, alpha = 0; uniform weights over a user and N copies of it are N / (N + 1); "auto" of bias
    correction is N (2 - beta) / (2 (N + 1)).
    """
    method, helpers = config["method"], _noisy(config)[4]
    if method in ("local", "all-for-one"):
        return (0.0 if method == "local" else helpers / (helpers + 1)), 0.0
    alpha, beta = config[method]["alpha"], float(config[method].get("beta", 0.0))
    return (helpers * (2 - beta) / (2 * (helpers + 1)) if alpha == "auto" else float(alpha)), beta


def sufficient_sizes(optima_nd: Floats, excess_e: Floats) -> Floats:
    """Return the mean size of the sufficient cluster at each of the excess losses (E,).

    All-for-one, definition 2, for losses |x - optimum|^2, optima (n, d). Peer k is in peer i's
    cluster if 1 - b_ik^2 / (2 mu excess) - c_ik is at least the threshold of the binary criterion.
    For these losses mu = 2, c = 0 and b_ik = 2 |x_i* - x_k*|, exactly: property 1 of the paper
    lacks this factor 2, and its sqrt(2) is for curvatures that differ; b is squared in definition
    2, as in assumption 3.
    """
    apart_nn = np.square(optima_nd[:, None] - optima_nd).sum(axis=-1)
    ratio_enn = 1 - 4 * apart_nn / (4 * excess_e[:, None, None])
    sizes: Floats = (ratio_enn >= THRESHOLD).sum(axis=2).mean(axis=1)
    return sizes


def speed_up(helpers: Floats, bias: Floats) -> Floats:
    """Return the speed-up of WGA over training alone at its best weight alpha, 1 / (1 - alpha).

    `helpers` is their number N, `bias` mu T zeta^2 / (L sigma^2), the cumulative bias relative to
    the noise; floats or arrays.
    """
    alpha = 1 / (1 + 1 / helpers + bias)
    result: Floats = 1 / (1 - alpha)
    return result


def sufficient_clusters() -> Figure:
    """Draw figure 1 of All-for-one."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    excess_e = np.geomspace(1e-8, 1e2, 200)
    g = np.random.default_rng(0)
    for v, colour in zip(DEVIATIONS, ("#3f7fb5", "#c44e52", "#d9822b", "#4a9a5b"), strict=True):
        drawn = [sufficient_sizes(v * g.normal(size=(PEERS, 2)), excess_e) for _ in range(DRAWS)]
        axes.semilogx(excess_e, np.mean(drawn, axis=0), color=colour, label=f"v = {v:g}")
    axes.invert_xaxis()
    axes.set(xlabel="excess loss", ylabel="peers in the sufficient cluster", ylim=(0, PEERS + 1))
    axes.set_yticks(range(0, PEERS + 1, 5))
    axes.legend(frameon=False)
    return figure


def wga_speed_up() -> Figure:
    """Draw figure 1 of WGA."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    bias, helpers = np.geomspace(1e-3, 10, 120), np.arange(1.0, 51.0)
    faster = speed_up(helpers[:, None], bias)
    drawn = axes.pcolormesh(bias, helpers, faster, norm=LogNorm(1, 51), rasterized=True)
    lines = axes.contour(bias, helpers, faster, levels=(1.5, 2, 5, 10, 20), colors="white")
    axes.set(xscale="log", xlabel="cumulative bias relative to noise", ylabel="helpers")
    ticks = [1, 1.5, 2, 5, 10, 20, 50]
    bar = figure.colorbar(drawn, ax=axes, label="speed-up", ticks=ticks, format="%g")
    bar.add_lines(lines)
    return figure


PREDICTIONS: dict[str, Prediction] = {
    "floor": floor,
    "loss": loss,
    "oracle-floor": oracle_floor,
    "cobo-consensus-bound": cobo_consensus_bound,
    "cobo-gradient-bound": cobo_gradient_bound,
}
"""Name -> closed form of a run's configuration."""
DRAWINGS: Mapping[str, Callable[[], Figure]] = {
    "sufficient-clusters": sufficient_clusters,
    "wga-speed-up": wga_speed_up,
}
"""Name -> function that draws a figure."""
