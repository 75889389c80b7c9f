"""The shape of the house: who imports whom, and what never happens in which room."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "app": {"app", "strategies", "clients", "datasets"},
    "strategies": {"strategies"},
    "clients": {"clients", "datasets"},
    "datasets": {"datasets"},
    "coterie": {"coterie", "app", "strategies", "clients", "datasets"},
}
MODULES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))
RELAY = {"app/server.py", "app/runs/recorder.py"}
"""Modules of the relay process, beside all of strategies/."""
KEYS_OF_PEERS = {"app.security.claims.proof", "app.security.trust.read_trust"}
"""What the relay tells nodes by: public keys, which open nothing."""
TORCH = {
    "app/node/arrays.py",
    "app/node/attackers.py",
    "app/node/cohort.py",
    "app/node/letter_checks.py",
    "app/node/letters.py",
    "app/node/node.py",
    "app/node/checkpoints.py",
    "app/node/offers.py",
    "app/node/packing.py",
    "app/node/part.py",
    "app/node/stacking.py",
    "app/node/tensor_file.py",
    "app/runners/inline.py",
    "app/runners/newcomers.py",
    "app/trained/export.py",
    "app/trained/personal.py",
    "app/trained/predict.py",
    "app/security/channel.py",
    "app/wire/payload.py",
    "app/wire/quantise.py",
    "clients/engine/augmentation.py",
    "clients/engine/chunks.py",
    "clients/engine/data.py",
    "clients/engine/descending.py",
    "clients/engine/differentiation.py",
    "clients/engine/engine.py",
    "clients/engine/forms.py",
    "clients/engine/independence.py",
    "clients/engine/layers.py",
    "clients/engine/line.py",
    "clients/engine/network.py",
    "clients/engine/privacy.py",
    "clients/engine/robust.py",
    "clients/engine/personal.py",
    "clients/engine/probe.py",
    "clients/engine/mixed_precision.py",
    "clients/engine/optimizers.py",
    "clients/engine/scoring.py",
    "clients/engine/stack.py",
    "clients/engine/sums.py",
    "clients/engine/tasks.py",
    "clients/engine/workers.py",
    "clients/models/adaptation.py",
    "clients/models/build.py",
    "clients/models/convnets.py",
    "clients/models/libraries.py",
    "clients/models/transformer.py",
    "clients/models/unet.py",
    "coterie/testing.py",
}
"""Modules that load torch: the node and the numeric core."""


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports, at its top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top(path: Path) -> str:
    """The package at the top that a module belongs to."""
    return path.relative_to(ROOT).parts[0]


def name_of(path: Path) -> str:
    """A module's file, from the project's root."""
    return path.relative_to(ROOT).as_posix()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_imports_go_one_way() -> None:
    offenders = []
    for path in MODULES:
        imported = {name.partition(".")[0] for name in imports(parse(path))}
        closed = set(ALLOWED) - ALLOWED[top(path)]
        if top(path) != "app" and not name_of(path).startswith("strategies/flower/"):
            closed |= {"flwr", "ray"}
        offenders += [f"{name_of(path)} imports {name}" for name in imported & closed]
    assert not offenders


def test_modules_stay_readable() -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES
    }
    assert not {name: lines for name, lines in lengths.items() if lines > 350}
    assert not [
        name for name in lengths if Path(name).stem in ("utils", "helpers", "common", "misc")
    ]


def test_nothing_on_the_way_of_a_message_or_a_key_is_executed() -> None:
    """No pickle, no eval: what peers and users send is data."""
    offenders = [f"{name_of(path)}: {what}" for path in MODULES for what in executed(path)]
    assert not offenders


def executed(path: Path) -> Iterator[str]:
    """What a module imports or calls that runs, or may run, code that it reads."""
    tree, reader = parse(path), top(path) == "datasets"
    foreign = {name.partition(".")[0] for name in imports(tree)}
    yield from foreign & {"cloudpickle", "dill", "marshal", "shelve", "joblib"}
    if not reader:  # CIFAR is published pickled
        yield from foreign & {"pickle"}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if reader:  # ImageNet's weights are published so; tensors only
        calls = [call for call in calls if not ast.unparse(call).endswith("weights_only=True)")]
    called = {ast.unparse(call.func) for call in calls}
    yield from called & {"eval", "exec", "compile", "__import__", "torch.load", "torch.save"}
    yield from called & {"pickle.load", "pickle.loads"}  # restrict what an Unpickler may find
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield from {ast.unparse(node)} - {"allow_pickle=False"}


def test_what_is_shipped_needs_nothing_that_is_not() -> None:
    """Relay and nodes run without the rooms that stay on the desk of whoever starts runs."""
    rooms = {"config": {"config"}, "runs": {"config", "runs"}}
    stay = {"cli", "runners", "dashboard", "report"}
    for path in MODULES:
        if top(path) == "coterie":  # of it only the names are shipped, each loaded when asked for
            continue
        room = path.relative_to(ROOT).parts[1] if top(path) == "app" else None
        if room in stay or name_of(path) == "app/__main__.py":
            continue
        used = {name.split(".")[1] for name in imports(parse(path)) if name.startswith("app.")}
        assert not used & stay, path
        assert used <= rooms.get(str(room), used), path


def test_datasets_is_ours() -> None:
    """Hugging Face's `datasets` would get our package, and so would whoever imports it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    assert not [name for name in wanted if name.startswith(("datasets", "flwr-datasets"))]
    for path in MODULES:
        for name in imports(parse(path)):
            assert name.partition(".")[0] != "flwr_datasets"
            if name.startswith("datasets."):
                parts = name.split(".")[1:]
                ours = importlib.util.find_spec(f"datasets.{parts[0]}")
                assert ours, f"{path} imports {name}, which we do not have"


@pytest.mark.e2e
def test_no_process_but_a_node_s_loads_torch() -> None:
    """Every module but those of `TORCH` loads without it: relay, launcher, rules, datasets."""
    free = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in MODULES
        if name_of(path) not in TORCH and path.stem != "__main__"
    ]
    code = "import importlib, sys\n" + "\n".join(
        f"importlib.import_module({name!r}); assert 'torch' not in sys.modules, {name!r}"
        for name in free
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_relay_opens_no_letter() -> None:
    """It forwards references: nothing in it can decode tensors, or turn a record into arrays."""
    for path in MODULES:
        if top(path) != "strategies" and name_of(path) not in RELAY:
            continue
        tree = parse(path)
        imported = set(imports(tree))
        assert not {name.partition(".")[0] for name in imported} & {"torch", "safetensors"}
        imported -= KEYS_OF_PEERS
        closed = ("app.node", "app.security", "app.wire")
        assert not [name for name in imported if name.startswith(closed)]
        decoding = {"numpy", "to_numpy_ndarrays", "to_torch_state_dict"}
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not attributes & decoding, path
