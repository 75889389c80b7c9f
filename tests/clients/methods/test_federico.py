"""FedeRiCo: a plain loop, the laws of EM, sampling, and prediction by the mixture."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.app.node.cohort.cohort import HostedPeers
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Letters
from coterie.clients.methods.federico import FedeRiCo, FedeRiCoState
from coterie.clients.training import Training
from tests.inline import Floats, Run, run
from tests.kit import configured
from tests.networks import outputs as by_torch
from tests.problems import classification, write_quadratic

N, D = 5, 3


def camps(path: Path, order: Any = slice(None), **more: Any) -> dict[str, Any]:
    """Make five peers around two centres, fully connected; `order` renumbers them."""
    g = np.random.default_rng(11)
    centre = np.repeat(2 * g.normal(size=(2, D)), [2, 3], axis=0) + 0.3 * g.normal(size=(N, D))
    curvature, start = g.uniform(0.5, 1.5, (N, D)), g.normal(size=(N, D))
    path.mkdir(exist_ok=True)
    flat: dict[str, Any] = write_quadratic(
        path / "problem.json", curvature[order], centre[order], start[order], **more
    )
    return flat | {
        "method": "federico", "federico.neighbours": N - 1, "num-server-rounds": 15,
        "evaluate-every": 15, "learning-rate": 0.3,
    }  # fmt: skip


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    w: Floats = e / e.sum(axis=-1, keepdims=True)
    return w


def twin(flat: dict[str, Any]) -> tuple[Floats, Floats, Floats]:
    """Run the method peer by peer; return models, weights, and losses of the mixtures."""
    problem = problem_of(Config.from_flat(flat))
    assert problem.start is not None
    a, c = problem.inputs[:N, 0], problem.inputs[:N, 1]
    beta, sharpness = flat.get("federico.beta", 0.6), flat.get("federico.sharpness", 1.0)
    eta, momentum = flat["learning-rate"], flat.get("momentum", 0.0)
    decay = flat.get("learning-rate-decay", 1.0)

    def loss(i: int, x: Floats) -> float:
        return float(0.5 * a[i] @ (x - c[i]) ** 2)

    phi = [row.copy() for row in problem.start]
    m, v = np.zeros((N, D)), np.zeros((N, D))
    tracked = np.zeros((N, N))
    for t in range(1, flat["num-server-rounds"] + 1):
        received = [row.copy() for row in phi]
        losses = np.array([[loss(i, received[b]) for b in range(N)] for i in range(N)])
        if flat.get("federico.tracking") == "accumulate":
            tracked = tracked + losses
        else:
            tracked = (1 - beta) * tracked + beta * losses
        w = softmax(-sharpness * tracked)
        for b in range(N):
            g = np.zeros(D)
            for i in range(N):
                g += w[i, b] * a[i] * (received[b] - c[i])
            if flat.get("optimizer") == "adam":
                m[b], v[b] = 0.9 * m[b] + 0.1 * g, 0.999 * v[b] + 0.001 * g**2
                g = m[b] / (1 - 0.9**t) / (np.sqrt(v[b] / (1 - 0.999**t)) + 1e-8)
            else:
                m[b] = momentum * m[b] + g
                g = m[b]
            phi[b] = phi[b] - eta * decay ** (t - 1) * g
    mixtures = [
        sum(w[i, j] * loss(i, phi[i] if i == j else received[j]) for j in range(N))
        for i in range(N)
    ]
    return np.array(phi), w, np.array(mixtures)


@pytest.mark.parametrize(
    ("more", "nodes"),
    [
        ({}, 1),
        ({"federico.beta": 0.3, "federico.sharpness": 3.0}, 2),
        ({"federico.tracking": "accumulate", "momentum": 0.5, "learning-rate-decay": 0.9}, 1),
        ({"optimizer": "adam", "learning-rate": 0.05, "federico.loss": "sum"}, 1),
        (
            {
                "federico.answer": "epoch",
                "federico.coin": "per-slot",
                "federico.epsilon": 1.0,
                "learning-rate-decay": 0.9,
            },
            1,
        ),
    ],
    ids=str,
)
def test_it_equals_a_plain_loop(tmp_path: Path, more: dict[str, Any], nodes: int) -> None:
    flat = camps(tmp_path, samples=[3, 1, 4, 1, 5]) | more
    result = run(flat, tmp_path, nodes)
    phi, w, mixtures = twin(flat)
    assert np.abs(result.theta() - phi).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-10
    np.testing.assert_allclose(result.metric("test_loss"), mixtures, rtol=1e-10)
    assert w.min() < 0.1  # weights are not uniform


def test_permuting_the_peers_permutes_everything(tmp_path: Path) -> None:
    order = np.array([3, 0, 4, 1, 2])
    here = run(camps(tmp_path / "here"), tmp_path / "here")
    there = run(camps(tmp_path / "there", order), tmp_path / "there")
    np.testing.assert_allclose(there.theta(), here.theta()[order], rtol=1e-12)
    w = here.weights()[np.ix_(order, order)]
    np.testing.assert_allclose(there.weights(), w, rtol=1e-12)
    np.testing.assert_allclose(there.metric("test_loss"), here.metric("test_loss")[order])


def flat_models(result: Run) -> list[torch.Tensor]:
    return [torch.cat([value.flatten() for value in model.values()]) for model in result.models()]


@pytest.mark.parametrize(
    ("federico", "local", "exactly"),
    [
        ({"optimizer": "adam", "learning-rate": 0.01}, {"batch-size": 100}, True),
        ({"momentum": 0.9}, {"batch-size": 100}, True),
        (
            {"federico.answer": "epoch", "batch-size": 8, "learning-rate-decay": 0.5},
            {"local-epochs": 1},
            False,
        ),
    ],
)
def test_without_neighbours_it_is_local_training(
    tmp_path: Path, federico: dict[str, Any], local: dict[str, Any], exactly: bool
) -> None:
    """Full batches, one step per round. Peer 0 has the common start of local training."""
    flat: dict[str, Any] = {
        "peers": 3, "num-server-rounds": 4, "evaluate-every": 4, "mlp.hidden": "8",
        "partition.samples-per-peer": 20, "partition.clusters": 1, "local-steps": 1, **federico,
    }  # fmt: skip
    alone = {"method": "federico", "federico.neighbours": 0}
    ours = run(flat | alone, tmp_path / "federico")
    theirs = run({k: v for k, v in flat.items() if "." not in k or "fed" not in k}
                 | local | {"method": "local"}, tmp_path / "local")  # fmt: skip
    assert np.array_equal(ours.weights(), np.eye(3))
    assert ours.metric("bytes_sent").tolist() == [0, 0, 0]
    one, other = flat_models(ours)[0], flat_models(theirs)[0]
    if exactly:
        assert torch.equal(one, other)
        assert ours.metric("test_loss")[0] == pytest.approx(theirs.metric("test_loss")[0])
    else:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_from_a_common_start_every_peer_without_neighbours_is_local_training(
    tmp_path: Path,
) -> None:
    flat: dict[str, Any] = {
        "peers": 3, "num-server-rounds": 2, "evaluate-every": 2, "local-steps": 1,
        "partition.clusters": 1, "batch-size": 1000, "partition.samples-per-peer": 20,
    }  # fmt: skip
    keys = {"method": "federico", "federico.neighbours": 0, "federico.starts": "common"}
    ours, theirs = run(flat | keys, tmp_path / "a"), run(flat | {"method": "local"}, tmp_path / "b")
    different = run(flat | keys | {"federico.starts": "different"}, tmp_path / "c")
    for p, (one, other) in enumerate(zip(flat_models(ours), flat_models(theirs), strict=True)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        assert torch.allclose(one, flat_models(different)[p], rtol=1e-4) == (p == 0)


def test_one_peer_alone_just_trains(tmp_path: Path) -> None:
    flat: dict[str, Any] = write_quadratic(tmp_path / "p.json", [[1.0, 2]], [[3.0, 4]], [0.0, 0])
    flat |= {"num-server-rounds": 7, "local-steps": 1, "learning-rate": 0.1}
    result = run(flat | {"method": "federico"}, tmp_path / "federico")
    np.testing.assert_allclose(result.theta()[0], [3, 4] * (1 - np.array([0.9, 0.8]) ** 7))
    assert np.array_equal(result.weights(), [[1.0]])


# ---- expectation maximisation ------------------------------------------------------------------


def likelihood(w: Floats, losses: Floats) -> float:
    """Return sum_i log sum_j Pi_ij exp(-l_ij), prior Pi = w of the last E-step (equation 4)."""
    return float(np.log((w * np.exp(-losses)).sum(axis=1)).sum())


@pytest.mark.parametrize("exact", [True, False])
def test_em_never_lowers_the_likelihood(tmp_path: Path, exact: bool) -> None:
    """Accumulated losses make softmax(-L) the posterior under the last posterior as prior.

    The M-step is exact (phi_j is the mean of the centres by w_ij a_i), or a gradient step of at
    most 1 / sum_i w_ij a_i, which cannot raise the weighted loss: generalised EM.
    """
    flat = camps(tmp_path) | {"learning-rate": 1 / (N * 1.5)}
    engine = configured(flat)
    a, c = engine.data.examples(
        "train", torch.arange(N), torch.zeros(N, 1, dtype=torch.int64)
    )[0][:, 0].unbind(1)  # fmt: skip
    options = FedeRiCo(neighbours=N - 1, tracking="accumulate")
    cohort = HostedPeers(engine, options.bind(engine, 100), 100)
    edges = np.array([[k, i] for i in range(N) for k in range(N) if k != i])
    values = []
    for t in range(1, 30):
        cohort.begin(t)
        cohort.receive(edges, {})
        cohort.answer(t, edges)
        w = torch.from_numpy(cohort.rule.weights(cohort.state))
        cohort.update(t, {})
        if exact:
            wa = w[:, :, None] * a[:, None, :]
            best = (wa * c[:, None, :]).sum(dim=0) / wa.sum(dim=0)
            cohort.state = replace(cohort.state, x=best)
        x = cohort.state.x
        losses = 0.5 * (a[:, None] * (x[None] - c[:, None]) ** 2).sum(dim=-1)
        values.append(likelihood(w.numpy(), losses.numpy()))
    assert np.diff(values).min() > -1e-12
    assert values[-1] > values[0] + 0.1


def test_sum_and_mean_are_the_same_where_the_loss_is_one_number(tmp_path: Path) -> None:
    flat = camps(tmp_path, samples=[9, 1, 2, 3, 4])
    result = [run(flat | {"federico.loss": loss}, tmp_path / loss) for loss in ("mean", "sum")]
    assert np.array_equal(result[0].theta(), result[1].theta())
    assert np.array_equal(result[0].weights(), result[1].weights())


def test_sum_is_the_likelihood_of_all_examples() -> None:
    """Losses and answers of "sum" are n_i times those of "mean" (1 peer, so weights are 1)."""
    problem, training = classification([4, 7]), Training(learning_rate=0.1)
    moved = {}
    for loss in ("mean", "sum"):
        engine = Engine(problem, "linear", None, [0, 1], training, dtype="float64")
        rule = FedeRiCo(neighbours=0, loss=loss, beta=1.0).bind(engine, 1)
        cohort = HostedPeers(engine, rule, 1)
        before = cohort.state.x
        cohort.receive(np.empty((0, 2), dtype=np.int64), {})
        cohort.update(1, {})
        moved[loss] = np.diag(cohort.state.last), (cohort.state.x - before).numpy()
    n_i = np.array([4, 7])
    np.testing.assert_allclose(moved["sum"][0], n_i * moved["mean"][0])
    np.testing.assert_allclose(moved["sum"][1], n_i[:, None] * moved["mean"][1])


# ---- sampling ----------------------------------------------------------------------------------


def wanted(rule: FedeRiCo, state: FedeRiCoState, rounds: int, first: int = 100) -> list[list[int]]:
    """Return the peers that peer 0 requests in each round."""
    result = [rule.edges(rule.wants(state, t)) for t in range(first, first + rounds)]
    return [sorted(edges[edges[:, 1] == 0, 0].tolist()) for edges in result]


def sampler(path: Path, **options: Any) -> tuple[FedeRiCo, FedeRiCoState]:
    """Make a rule whose peer 0 ranks peers 1, 2, 3, 4."""
    rule = FedeRiCo(**options).bind(configured(camps(path)), 1000)
    tracked = np.tile(np.arange(N, dtype=float), (N, 1))
    return rule, replace(rule.init(), tracked=tracked, last=tracked)


@pytest.mark.slow
def test_the_coin_chooses_between_the_best_and_anyone(tmp_path: Path) -> None:
    rule, state = sampler(tmp_path, neighbours=2, epsilon=0.0)
    assert wanted(rule, state, 20) == [[1, 2]] * 20
    rule, state = sampler(tmp_path, neighbours=2, epsilon=1.0)
    pairs = Counter(map(tuple, wanted(rule, state, 1200)))
    assert len(pairs) == 6  # each pair of four: 200 times, deviation sqrt(1200 * 5) / 6 = 13
    assert max(abs(count - 200) for count in pairs.values()) < 4 * 13
    # One draw per round: explores with 0.3, and then samples [1, 2] one time in six.
    rule, state = sampler(tmp_path, neighbours=2, epsilon=0.3)
    greedy = wanted(rule, state, 1200).count([1, 2]) / 1200
    assert greedy == pytest.approx(0.7 + 0.3 / 6, abs=4 * 0.0125)
    # One draw per slot: best-best 0.49; best-any 0.21 / 3; any-best 0.21 (1/4 + 1/4), as the
    # best of the rest completes the pair from either half; any-any 0.09 / 6.
    rule, state = sampler(tmp_path, neighbours=2, epsilon=0.3, coin="per-slot")
    greedy = wanted(rule, state, 1200).count([1, 2]) / 1200
    assert greedy == pytest.approx(0.49 + 0.07 + 0.105 + 0.015, abs=4 * 0.0135)


def test_peers_never_heard_come_first_and_later_last(tmp_path: Path) -> None:
    rule, state = sampler(tmp_path, neighbours=1, epsilon=0.0)
    last = state.last.copy()
    last[:, 4] = np.nan
    unheard = replace(state, last=last, tracked=np.where(np.isnan(last), 0.0, state.tracked))
    assert wanted(rule, unheard, 3, first=N - 2) == [[4]] * 3
    assert wanted(rule, unheard, 3, first=N + 1) == [[1]] * 3
    assert rule.weights(unheard)[0, 4] == 0
    assert wanted(rule, rule.init(), N, first=1) != [[1]] * N  # ties at random


def test_more_neighbours_than_peers_are_all_of_them_and_none_beyond_the_topology(
    tmp_path: Path,
) -> None:
    rule, state = sampler(tmp_path, neighbours=9)
    assert wanted(rule, state, 3) == [[1, 2, 3, 4]] * 3
    flat = camps(tmp_path) | {"topology": "ring", "federico.neighbours": 2}
    assert (run(flat, tmp_path, 2).weights() > 0).sum() == N * 3


def test_a_round_costs_a_model_and_an_answer_for_each_neighbour(tmp_path: Path) -> None:
    flat = camps(tmp_path) | {"federico.neighbours": 2, "num-server-rounds": 6}
    result = run(flat, tmp_path, nodes=2)
    assert result.metric("bytes_sent").sum() == 6 * N * 2 * 2 * (8 * D)
    assert result.metric("bytes_sent").sum() == result.metric("bytes_received").sum()


# ---- prediction --------------------------------------------------------------------------------


def talk(cohort: HostedPeers, t: int, edges: list[list[int]]) -> None:
    cohort.begin(t)
    cohort.receive(np.array(edges, dtype=np.int64).reshape(-1, 2), {})
    cohort.answer(t, np.array(edges, dtype=np.int64).reshape(-1, 2))
    cohort.update(t, {})


def test_it_predicts_with_the_mixture_of_what_it_heard() -> None:
    """Probabilities are averaged by softmax(-tracked loss) over own and received models only."""
    problem = classification([6, 6, 6, 6], tests=[9, 9, 9, 9])
    engine = Engine(problem, "linear", None, range(4), Training(learning_rate=0.5))
    cohort = HostedPeers(engine, FedeRiCo(neighbours=2).bind(engine, 9), 9)
    shown = cohort.state.x.clone()
    talk(cohort, 1, [[1, 0], [2, 0]])  # only peer 0 receives models
    w = cohort.rule.weights(cohort.state)
    assert np.array_equal(w > 0, np.array([[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]))
    np.testing.assert_allclose(w[0, :3], softmax(-0.6 * cohort.state.last[0, :3]))
    rows = torch.arange(9).expand(4, -1)
    inputs, labels = engine.data.examples("test", torch.arange(4), rows)

    def probabilities(x: torch.Tensor, peer: int) -> torch.Tensor:
        outputs = by_torch(engine.network, x[None], {}, inputs[peer][None])[0][0]
        return outputs.softmax(dim=-1)

    members = [cohort.state.x[0], shown[1], shown[2]]
    mixed = sum(w[0, j] * probabilities(x, 0) for j, x in enumerate(members))
    assert isinstance(mixed, torch.Tensor)
    scores = cohort.rule.evaluate(cohort.state, "test")
    chosen = mixed.gather(1, labels[0][:, None])
    assert float(scores.losses[0]) == pytest.approx(float(-chosen.log().mean()), rel=1e-5)
    assert float(scores.accuracies[0]) == float((mixed.argmax(1) == labels[0]).double().mean())
    alone = engine.losses(cohort.state.x, {}, "test")
    torch.testing.assert_close(scores.losses[1:], alone.losses[1:])


def test_only_the_heaviest_models_are_kept(tmp_path: Path) -> None:
    engine = configured(camps(tmp_path))
    rule = FedeRiCo(neighbours=4, ensemble=2, beta=1.0).bind(engine, 9)
    cohort = HostedPeers(engine, rule, 9)
    edges = [[k, i] for i in range(N) for k in range(N) if k != i]
    for t in (1, 2):
        shown = cohort.state.x.clone()
        talk(cohort, t, edges)
        others = np.where(np.eye(N) > 0, -1.0, rule.weights(cohort.state))
        heaviest = np.sort(np.argsort(-others, axis=1)[:, :2], axis=1)
        order = np.argsort(cohort.state.authors, axis=1)
        at = np.arange(N)[:, None], order
        if t == 1:
            assert np.array_equal(cohort.state.authors[at], heaviest)
        assert torch.equal(cohort.state.members[at], shown[cohort.state.authors[at]])
    assert torch.isfinite(rule.evaluate(cohort.state, "test").losses).all()


def test_a_diverged_model_gets_no_weight_and_spoils_nothing(tmp_path: Path) -> None:
    engine = configured(camps(tmp_path))
    rule = FedeRiCo(neighbours=4).bind(engine, 9)
    state = rule.init()
    stack = state.x.clone()
    stack[1] = 1e200  # its loss overflows
    senders, recipients = np.array([1, 2, 1]), np.array([0, 0, 3])  # the only one for peer 3
    letters = Letters(senders, recipients, senders, np.arange(N), {"x": stack})
    after = rule.receive(state, rule.inbox(1, letters))
    w = rule.weights(after)
    assert np.isfinite(w).all()
    assert w[[0, 3], 1].tolist() == [0, 0]
    assert w[0, [0, 2]].min() > 0
    assert torch.isfinite(rule.evaluate(after, "test").losses).all()


# ---- choosing ----------------------------------------------------------------------------------


def test_groups_find_each_other(tmp_path: Path) -> None:
    """Row overlap sum_j min(w_ij, w_kj): near 1 inside a group, near 0 across."""
    flat: dict[str, Any] = {
        "method": "federico", "federico.sharpness": 3.0, "federico.neighbours": 2, "peers": 6,
        "partition.kind": "label-groups", "partition.clusters": 2, "mlp.hidden": "16",
        "partition.samples-per-peer": 20, "optimizer": "adam", "learning-rate": 0.02,
        "num-server-rounds": 60, "evaluate-every": 60,
    }  # fmt: skip
    w = run(flat, tmp_path).weights()
    truth = problem_of(Config.from_flat(flat)).clusters
    assert truth is not None
    overlap = np.minimum(w[:, None], w[None]).sum(axis=-1)
    mates = truth[:, None] == truth[None]
    assert overlap[mates].mean() > 0.9
    assert overlap[~mates].max() < 0.1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("neighbours", -1), ("epsilon", 1.5), ("epsilon", -0.1), ("beta", 0.0), ("beta", 1.1),
        ("sharpness", 0.0), ("ensemble", -1), ("tracking", "mean"), ("loss", "max"),
        ("answer", "batch"), ("coin", "round"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        Config.from_flat({"method": "federico", f"federico.{key}": value})
