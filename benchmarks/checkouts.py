"""Comparison of two checkouts: all methods, three problems, in one process and on two nodes.

`python -m benchmarks.checkouts OTHER_CHECKOUT [--methods cobo,dpfl]` runs this checkout and the
other one in parallel, each in its own process, and compares the results: metrics.jsonl
byte for byte, the arrays of collaboration.npz and of models/*.safetensors. "=" is identical;
anything else is the largest |here - there| / max(1, |there|). Exits with 1 if anything differs.

"inline" is the run without Flower; "2 nodes" is Flower's simulation engine with two virtual nodes
(`tests.inprocess`, each checkout's own).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Column, Table
from safetensors.numpy import load_file

Array = npt.NDArray[Any]

HERE = Path(__file__).resolve().parent.parent
CHANGED: frozenset[str] = frozenset(
    {"peer_name", "balanced_accuracy", "macro_f1", "auroc", "sensitivity", "specificity"}
    | {"expected_calibration_error", "mae", "rmse", "r2"}
)
"""Columns of metrics.jsonl that differ on purpose, or that one side does not have yet."""

# What is called in a checkout, newest place first.
_CONFIG = "coterie.app.config.config", "app.config.config"
_INLINE = "coterie.app.runners.inline", "app.runners.inline"
_METHODS = "coterie.app.config.registry", "app.config.registry"

HOSTINGS = "inline", "2 nodes"
PROBLEMS = "digits", "quadratic", "table"
REFUSED = {
    (method, problem)
    for method in ("fedpac", "fedproto", "oracle")
    for problem in ("quadratic", "table")
}
"""Methods that cannot run on a problem: it has no classes, or no true clusters."""

_COMMON: dict[str, Any] = {
    "num-server-rounds": 10, "evaluate-every": 2, "device": "cpu", "batch-size": 5,
    "local-steps": 2, "learning-rate": 0.05, "momentum": 0.5,
}  # fmt: skip
_OF_METHOD: dict[str, dict[str, Any]] = {
    "apfl": {"apfl.adaptive": True},
    "clustered-fl": {"clustered-fl.eps1": 100.0, "clustered-fl.eps2": 0.05},
    "cobo": {"cobo.gamma": 0.5, "cobo.sampling": "constant", "cobo.probability": 0.6},
    "dpfl": {"dpfl.init-epochs": 1},
    "federated-clustering": {"federated-clustering.quantile": 0.5},
    "federico": {"federico.neighbours": 1},
    "ifca": {"ifca.clusters": 2},
}
"""Options with which a method has an effect within ten rounds among few peers."""


def write_problems(directory: Path) -> dict[str, dict[str, Any]]:
    """Write the files of the problems; return the configuration keys by problem.

    Between them: equal and unequal peers, a full graph and a ring, plain, sealed and rounded
    letters, float32 and float64.
    """
    g = np.random.default_rng(0)
    centre = np.repeat([[1.0, -1, 0], [-1.0, 1, 2]], 2, axis=0) + g.normal(size=(4, 3)) / 8
    quadratic = {
        "curvature": g.uniform(0.5, 1.5, (4, 3)).tolist(),
        "centre": centre.tolist(),
        "noise": [0.1] * 4,
        "start": g.normal(size=(4, 3)).tolist(),
        "samples": [1, 2, 3, 4],
        "validation_centre": (centre + 0.05).tolist(),
    }
    file = directory / "quadratic.json"
    file.write_text(json.dumps(quadratic), encoding="utf-8")
    for peer in range(4):
        x = g.normal(size=(20 + 5 * peer, 2))
        y = x @ [1.0, peer % 2] + 0.1 * g.normal(size=len(x))
        folder = directory / "table" / str(peer)
        folder.mkdir(parents=True)
        rows = np.column_stack([x, y])
        np.savetxt(folder / "data.csv", rows, delimiter=",", header="a,b,label", comments="")
    return {
        "digits": {
            "dataset": "digits", "peers": 5, "model": "mlp", "mlp.hidden": "8",
            "partition.clusters": 2, "partition.samples-per-peer": 16, "partition.validation": 0.25,
        },
        "quadratic": {
            "dataset": "quadratic", "peers": 4, "quadratic.file": str(file), "topology": "ring",
            "sealing": True,
        },
        "table": {
            "dataset": "table", "peers": 4, "data-dir": str(directory / "table"), "model": "mlp",
            "mlp.hidden": "8", "table.columns": "a, b", "table.validation": 0.2,
            "payload": "int8",
        },
    }  # fmt: skip


# --- one side: a process whose imports are those of one checkout --------------------------------


def run_all(out: str, problems: str, methods: str) -> None:
    """Run everything; a run that fails leaves `error` in its directory.

    Parameters
    ----------
    out : str
        Directory that receives OUT/problem/hosting/method.
    problems : str
        Configuration keys by problem, as JSON.
    methods : str
        Names, separated by commas; empty: all methods of the checkout.
    """
    # Older engines time chunk sizes and keep the fastest, which rounding can show: here every call
    # takes one tick, so that the choice is the same on both sides.
    time.perf_counter = itertools.count().__next__
    config, inline = _first(_CONFIG).Config, _first(_INLINE)
    simulate = import_module("tests.inprocess").simulate

    runs: tuple[Callable[[Mapping[str, Any]], object], ...] = (
        lambda flat: inline.run(config.from_flat(flat)),
        lambda flat: simulate(flat, nodes=2),
    )
    names = methods.split(",") if methods else list(_first(_METHODS).METHODS)
    for problem, flat in json.loads(problems).items():
        for method, (hosting, run) in itertools.product(names, zip(HOSTINGS, runs, strict=True)):
            directory = Path(out, problem, hosting, method)
            directory.mkdir(parents=True)
            where = {"method": method, "run-dir": str(directory)}
            try:
                run({**_COMMON, **_OF_METHOD.get(method, {}), **flat, **where})
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                (directory / "error").write_text(message, encoding="utf-8")


def _first(modules: Sequence[str]) -> Any:
    """Import the first of these modules that this checkout has."""
    return import_module(next(module for module in modules if _exists(module)))


def _exists(module: str) -> bool:
    """Return True if this checkout, the working directory, has the module."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # its package is not there
        return False
    # An editable installation offers the modules of its own checkout as well.
    return spec is not None and Path(str(spec.origin)).is_relative_to(Path.cwd())


# --- the comparison -----------------------------------------------------------------------------


def start(checkout: Path, out: Path, problems: str, methods: str) -> subprocess.Popen[bytes]:
    """Start one side; its output goes to OUT.log."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['run_all'](*sys.argv[2:])"
    environment = os.environ | {
        "PYTHONPATH": str(checkout),
        "OMP_NUM_THREADS": "1",
        "MKL_CBWR": "COMPATIBLE",  # else its sums depend on where in memory the numbers lie
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code, __file__, str(out), problems, methods],
            cwd=checkout,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


class Verdict(NamedTuple):
    """Comparison of two run directories: table cell, differing columns, errors of failed runs."""

    cell: str
    columns: Set[str] = frozenset()
    errors: tuple[str, ...] = ()


def compare(here: Path, there: Path) -> Verdict:
    """Compare the results of one run in two checkouts."""
    problem, _, method = here.parts[-3:]
    errors = tuple(p.read_text("utf-8") for run in (here, there) for p in run.glob("error"))
    if len(errors) == 2 and (method, problem) in REFUSED:
        return Verdict("refused")
    if errors:
        return Verdict("failed", errors=errors)
    apart = {
        what: max(_all_apart(read(here), read(there)).values(), default=np.inf)
        for what, read in (("weights", _weights), ("models", _models))
    }
    differences = {what: largest for what, largest in apart.items() if largest}
    columns: set[str] = set()
    if _metrics(here) != _metrics(there):
        differing = _all_apart(_columns(here), _columns(there))
        columns = {name for name, largest in differing.items() if largest}
        differences["metrics"] = max(differing.values())
    return Verdict(", ".join(f"{what} {x:.0e}" for what, x in differences.items()) or "=", columns)


def _metrics(run: Path) -> list[bytes]:
    """Return the lines of metrics.jsonl, without the columns that differ on purpose."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    return lines if not CHANGED else [_without_changed(line) for line in lines]


def _without_changed(line: bytes) -> bytes:
    row = json.loads(line)
    return json.dumps({key: row[key] for key in row if key not in CHANGED}).encode()


def _columns(run: Path) -> dict[str, Array]:
    """Return each column of metrics.jsonl; None in lines without it."""
    rows = [json.loads(line) for line in _metrics(run)]
    names = {name for row in rows for name in row}
    return {name: np.array([row.get(name) for row in rows], dtype=object) for name in names}


def _weights(run: Path) -> dict[str, Array]:
    with np.load(run / "collaboration.npz") as file:
        return dict(file)


def _models(run: Path) -> dict[str, Array]:
    files = sorted((run / "models").glob("*.safetensors"))
    return {f"{file.name} {name}": x for file in files for name, x in load_file(file).items()}


def _all_apart(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> dict[str, float]:
    """Return the difference of arrays by name; inf if only one side has the array."""
    shared = ours.keys() & theirs.keys()
    return {
        name: _apart(ours[name], theirs[name]) if name in shared else np.inf
        for name in ours.keys() | theirs.keys()
    }


def _apart(ours: Array, theirs: Array) -> float:
    """Return the difference of two arrays: 0 if equal, inf if they cannot be subtracted."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return np.inf
    if ours.tolist() == theirs.tolist():
        return 0.0
    try:
        a, b = ours.astype(np.float64), theirs.astype(np.float64)  # None becomes nan
    except ValueError:  # text
        return np.inf
    if (np.isnan(a) != np.isnan(b)).any():
        return np.inf
    return float(np.nanmax(np.abs(a - b) / np.maximum(1, np.abs(b)), initial=0.0))


def main() -> None:
    """Print the table; exit with 1 if the checkouts differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkouts", description=__doc__)
    parser.add_argument("other", type=Path, help="the checkout to compare this one with")
    parser.add_argument("--methods", default="", help="names with commas (all)")
    arguments = parser.parse_args()
    console = Console()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        problems = json.dumps(write_problems(Path(place)))
        outs = [Path(place, side) for side in ("here", "there")]
        sides = [
            start(checkout, out, problems, arguments.methods)
            for checkout, out in zip((HERE, arguments.other.resolve()), outs, strict=True)
        ]
        codes = [side.wait() for side in sides]
        for code, out in zip(codes, outs, strict=True):
            if code:
                sys.exit(f"{out.name}:\n{out.with_suffix('.log').read_text('utf-8')[-3000:]}")
        differs = show(console, *outs)
    console.print(f"{time.monotonic() - began:.0f} s")
    sys.exit(differs)


def show(console: Console, here: Path, there: Path) -> bool:
    """Print a row for each method of both sides; return True if anything differs."""
    cells = list(itertools.product(PROBLEMS, HOSTINGS))
    table = Table(Column("method", no_wrap=True), *("\n".join(cell) for cell in cells))
    ours, theirs = (
        {path.name for path in side.joinpath(*cells[0]).iterdir()} for side in (here, there)
    )
    columns: set[str] = set()
    differs = False
    for method in sorted(ours & theirs):
        row = []
        for cell in cells:
            verdict = compare(here.joinpath(*cell, method), there.joinpath(*cell, method))
            row.append(verdict.cell)
            columns |= verdict.columns
            differs |= verdict.cell not in ("=", "refused")
            for error in verdict.errors:
                console.print(f"{method}, {', '.join(cell)}: {error}")
        table.add_row(method, *row)
    console.print(table)
    for what, names in (
        ("columns that differ", columns),
        ("columns left out, as they differ on purpose", CHANGED),
        ("methods that one side does not have", ours ^ theirs),
    ):
        if names:
            console.print(f"{what}: {', '.join(sorted(names))}")
    return differs


if __name__ == "__main__":
    main()
