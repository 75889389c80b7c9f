"""Write a run directory in the product's file formats, with numbers that look like a real run's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tomli_w


@dataclass(frozen=True)
class Story:
    """Properties of the synthetic run.

    Attributes
    ----------
    peers, clusters, rounds, step : n, number of true clusters, evaluated rounds after round 0 and
        rounds between two of them.
    accuracy : False for a problem with losses only.
    weights : "ties" in [0, 1] as CoBo's, "shares" that sum to 1, "none" for a silent method.
    known : whether the split says which cluster a peer belongs to.
    validation : whether the peers hold out validation data.
    """

    peers: int = 8
    clusters: int = 4
    rounds: int = 15
    step: int = 100
    accuracy: bool = True
    weights: str = "ties"
    known: bool = True
    validation: bool = True
    seed: int = 0


def write_run(directory: Path, story: Story = Story(), **config: object) -> Path:
    """Fill `directory` with a run; `config` overrides keys of config.toml."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(story.seed)
    n, last = story.peers, story.rounds * story.step
    cluster_n = np.arange(n) % story.clusters
    rounds = np.arange(0, last + 1, story.step) if story.rounds else np.array([0])
    write_config(
        directory,
        {"peers": n, "seed": story.seed, "num-server-rounds": last, **config},
    )
    write_metrics(directory, _records(story, rounds, rng))
    if story.weights != "none":
        weights = _weights(story, rounds, cluster_n, rng)
        np.savez_compressed(directory / "collaboration.npz", rounds=rounds, weights=weights)
    samples_n = rng.integers(40, 80, n)
    labels = rng.multinomial(samples_n, rng.dirichlet(np.full(10, 0.6), n)).tolist()
    write_split(
        directory,
        cluster_n.tolist() if story.known else [None] * n,
        samples=samples_n.tolist(),
        labels=labels if story.accuracy else None,
    )
    write_progress(directory, round=last, rounds=last, messages=4 * last, seconds=73.42)
    return directory


def write_config(directory: Path, keys: Mapping[str, object]) -> None:
    """Write config.toml: the defaults of the main job with `keys` over them."""
    defaults: dict[str, object] = {
        "method": "cobo",
        "peers": 8,
        "num-server-rounds": 1500,
        "seed": 0,
        "dataset": "digits",
        "model": "mlp",
        "batch-size": 32,
        "local-steps": 1,
        "optimizer": "sgd",
        "learning-rate": 0.1,
        "topology": "full",
        "evaluate-every": 100,
        "partition": {"kind": "label-permutation", "clusters": 4, "samples-per-peer": 60},
        "cobo": {"rho": 0.05, "gamma": 0.01, "sampling": "constant"},
    }
    (directory / "config.toml").write_text(tomli_w.dumps({**defaults, **keys}), encoding="utf-8")


def write_metrics(directory: Path, records: Sequence[Mapping[str, object]]) -> None:
    """Write metrics.jsonl."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    (directory / "metrics.jsonl").write_text(text, encoding="utf-8")


def write_split(
    directory: Path,
    clusters: Sequence[int | None],
    samples: Sequence[int],
    labels: Sequence[Sequence[int]] | None = None,
) -> None:
    """Write split.json."""
    split = [
        {
            "peer": peer,
            "cluster": cluster,
            "train": {"size": samples[peer], "labels": None if labels is None else labels[peer]},
            "validation": {"size": 12, "labels": None},
            "test": {"size": 45, "labels": None},
        }
        for peer, cluster in enumerate(clusters)
    ]
    (directory / "split.json").write_text(json.dumps(split), encoding="utf-8")


def write_progress(directory: Path, **fields: object) -> None:
    """Write progress.json of a finished run."""
    content = {"status": "finished", "error": None, **fields}
    (directory / "progress.json").write_text(json.dumps(content), encoding="utf-8")


def _records(
    story: Story, rounds: npt.NDArray[np.int64], rng: np.random.Generator
) -> list[dict[str, object]]:
    ceiling_n = np.clip(0.89 + 0.035 * rng.standard_normal(story.peers), 0.6, 0.99)
    speed_n = rng.uniform(0.7, 1.3, story.peers) / 200
    bytes_n = rng.integers(3000, 6000, story.peers)
    records: list[dict[str, object]] = []
    for each in rounds.tolist():
        learnt_n = 1 - np.exp(-each * speed_n)
        accuracy_n = 0.1 + (ceiling_n - 0.1) * learnt_n + 0.008 * rng.standard_normal(story.peers)
        loss_n = 2.3 * (1 - learnt_n) + 0.35 * learnt_n + 0.1 * (learnt_n**8)
        if not story.accuracy:
            loss_n = 25 * np.exp(-each * speed_n) + 1e-6
        records += [
            {
                "round": each,
                "peer": peer,
                "test_loss": float(loss_n[peer]),
                "test_accuracy": float(np.clip(accuracy_n[peer], 0, 1)) if story.accuracy else None,
                "validation_loss": float(loss_n[peer] * 1.04) if story.validation else None,
                "train_loss": float(loss_n[peer] * 0.6),
                "bytes_sent": int(each * bytes_n[peer]),
                "bytes_received": int(each * bytes_n[-1 - peer]),
                "gradient_evaluations": int(each * 32 * (1 + 0.2 * (peer % 3))),
            }
            for peer in range(story.peers)
        ]
    return records


def _weights(
    story: Story,
    rounds: npt.NDArray[np.int64],
    cluster_n: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    n, end = story.peers, max(int(rounds[-1]), 1)
    same_nn = cluster_n[:, None] == cluster_n[None, :]
    fade_nn = rng.uniform(0.15, 0.5, (n, n)) * end
    fade_nn = (fade_nn + fade_nn.T) / 2
    matrices = []
    for each in rounds.tolist():
        w_nn = np.where(same_nn, 1.0, np.clip(1.2 - each / fade_nn, 0, 1))
        w_nn = np.where(same_nn & (each > 0.8 * end), 1.7 - each / end, w_nn)
        if story.weights == "shares":
            w_nn /= w_nn.sum(axis=1, keepdims=True)
        else:
            np.fill_diagonal(w_nn, 1.0)
        matrices.append(w_nn)
    return np.stack(matrices)
