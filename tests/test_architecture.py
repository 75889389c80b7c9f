"""The shape of the house: who imports whom, and what never happens in which room."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import datasets

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "app": {"app", "strategies", "clients", "datasets"},
    "strategies": {"strategies"},
    "clients": {"clients", "datasets"},
    "datasets": {"datasets"},
}
MODULES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))
RELAY = {"app/server.py", "app/runs/recorder.py"}
"""Modules of the relay process, beside all of strategies/."""
TORCH = {
    "app/node/cohort.py",
    "app/node/node.py",
    "app/node/checkpoints.py",
    "app/runners/inline.py",
    "app/security/inbox.py",
    "app/wire/payload.py",
    "app/wire/quantise.py",
    "clients/engine/augmentation.py",
    "clients/engine/chunks.py",
    "clients/engine/data.py",
    "clients/engine/engine.py",
    "clients/engine/network.py",
    "clients/engine/mixed_precision.py",
    "clients/engine/scoring.py",
    "clients/engine/stack.py",
    "clients/engine/tasks.py",
    "clients/models/build.py",
    "clients/models/convnets.py",
    "clients/models/transformer.py",
    "clients/models/unet.py",
}
"""Modules that load torch: the node and the numeric core."""

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


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


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@each_module
def test_imports_go_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    imported = {name.partition(".")[0] for name in imports(parse(path))}
    assert imported & set(ALLOWED) <= ALLOWED[package]
    if package != "app" and not name_of(path).startswith("strategies/flower/"):
        assert not imported & {"flwr", "ray"}


@each_module
def test_modules_stay_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 350
    assert path.stem not in ("utils", "helpers", "common", "misc")


@each_module
def test_nothing_on_the_way_of_a_message_or_a_key_is_executed(path: Path) -> None:
    """No pickle, no eval: what peers and users send is data."""
    tree = parse(path)
    foreign = {name.partition(".")[0] for name in imports(tree)}
    assert not foreign & {"cloudpickle", "dill", "marshal", "shelve", "joblib"}
    if top(path) != "datasets":  # CIFAR is published pickled
        assert "pickle" not in foreign
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if top(path) == "datasets":  # ImageNet's weights are published so; tensors only
        calls = [call for call in calls if not ast.unparse(call).endswith("weights_only=True)")]
    called = {
        call.func.id if isinstance(call.func, ast.Name) else ast.unparse(call.func)
        for call in calls
    }
    assert not called & {"eval", "exec", "compile", "__import__", "torch.load", "torch.save"}
    assert not called & {"pickle.load", "pickle.loads"}, "restrict what an Unpickler may find"
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False"


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
                assert importlib.util.find_spec(f"datasets.{parts[0]}") or hasattr(
                    datasets, parts[0]
                ), f"{path} imports {name}, which we do not have"


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
        closed = ("app.node", "app.security", "app.wire")
        assert not [name for name in imported if name.startswith(closed)]
        decoding = {"numpy", "to_numpy_ndarrays", "to_torch_state_dict"}
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not attributes & decoding, path
