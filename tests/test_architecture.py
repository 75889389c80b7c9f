"""Test the architecture: imports, executed data, length of functions, docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from tests import private_names

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "app": {"app", "strategies", "clients", "datasets"},
    "strategies": {"strategies"},
    "clients": {"clients", "strategies", "datasets"},
    "datasets": {"datasets"},
    "coterie": {"coterie", "app", "strategies", "clients", "datasets"},
}
MODULES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))
RELAY = {"app/server.py", "app/runs/recorder.py"}
"""Modules of the relay process, in addition to all of strategies/."""
KEYS_OF_PEERS = {
    "coterie.app.institution.security.proof.proof",
    "coterie.app.institution.security.trust.read_trust",
}
"""Names through which the relay uses public keys, which decrypt nothing."""
TORCH = {
    "app/node/assembly.py",
    "app/node/cohort/arrays.py",
    "app/node/cohort/attackers.py",
    "app/node/cohort/checked_rule.py",
    "app/node/cohort/clearance.py",
    "app/node/cohort/cohort.py",
    "app/node/cohort/filters.py",
    "app/node/cohort/mail.py",
    "app/node/cohort/members.py",
    "app/institution/node.py",
    "app/node/channel.py",
    "app/node/node.py",
    "app/node/storage/checkpoints.py",
    "app/node/cohort/wire.py",
    "app/institution/scale.py",
    "app/node/storage/models.py",
    "app/node/storage/tensor_file.py",
    "app/runners/inline.py",
    "app/trained/export.py",
    "app/trained/personal.py",
    "app/trained/predict.py",
    "app/institution/security/channel.py",
    "app/wire/increments.py",
    "app/wire/operators.py",
    "app/wire/payload.py",
    "app/wire/quantise.py",
    "clients/engine/backends/backend.py",
    "clients/engine/backends/batched.py",
    "clients/engine/backends/choose.py",
    "clients/engine/backends/sequential.py",
    "clients/engine/data.py",
    "clients/engine/engine.py",
    "clients/engine/evaluation.py",
    "clients/engine/execution.py",
    "clients/engine/layers.py",
    "clients/engine/library.py",
    "clients/engine/network.py",
    "clients/engine/optimizers.py",
    "clients/engine/privacy.py",
    "clients/engine/probe.py",
    "clients/engine/robust.py",
    "clients/engine/sums.py",
    "clients/engine/tasks.py",
    "clients/engine/training.py",
    "clients/engine/tuning.py",
    "clients/models/adaptation.py",
    "clients/models/build.py",
    "clients/models/convnets.py",
    "clients/models/fitted.py",
    "clients/models/libraries.py",
    "clients/models/transformer.py",
    "coterie/testing.py",
}
"""Modules that load torch: the node and the numeric core."""
MAX_LINES, MAX_METHODS = 60, 15
"""Lines of a function without its docstring; public methods of a class without inherited ones."""
TOO_LONG = {
    "app/node/cohort/cohort.py: HostedPeers",
    "app/runs/rundir.py: Run",
    "clients/engine/engine.py: Engine",
    "clients/engine/engine.py: Engine.__init__",
    "clients/inbox.py: Inbox",
}
"""Functions and classes that are still above the maximum; `Inbox` is all that a method reads."""
TYPED_SECTIONS = {"Parameters", "Attributes", "Returns", "Yields"}
SECTIONS = TYPED_SECTIONS | {"Raises", "Notes", "Examples", "References"}
"""Sections of numpydoc that docstrings may have."""
WORDS_OF_TYPES = {
    "int", "float", "float64", "bool", "str", "bytes", "dict", "list", "tuple", "set",
    "frozenset", "object", "type", "ndarray", "array", "callable", "iterable", "sequence",
    "mapping", "collection", "path", "dataclass", "optional", "of", "to", "or",
}  # fmt: skip
"""Words of a type in a docstring, besides names of classes."""


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


def module_of(path: Path) -> str:
    """The import name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    full = parts if parts[0] == "coterie" else ("coterie", *parts)
    return ".".join(full).removesuffix(".__init__")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "helpers", "common", "misc"}
    assert not [path for path in MODULES if path.stem in drawers]


@pytest.mark.slow
def test_python_users_go_through_no_command_line() -> None:
    """`coterie` and the library of comparisons call what commands call, not the commands."""
    for path in MODULES:
        if path.stem == "__main__":
            continue
        if top(path) == "coterie" or name_of(path).startswith("app/comparisons/"):
            names = set(imports(parse(path)))
            assert not [
                name for name in names if name.startswith(("coterie.app.cli", "argparse"))
            ], path


@pytest.mark.slow
def test_functions_and_classes_are_short() -> None:
    long = {f"{name_of(path)}: {name}" for path in MODULES for name in too_long(parse(path))}
    assert long == TOO_LONG


def too_long(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """Yield the names of functions and classes above the maximum, at any depth."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{inside}.{node.name}".lstrip(".")
            if lines_of(node) > MAX_LINES:
                yield name
        elif isinstance(node, ast.ClassDef):
            name = f"{inside}.{node.name}".lstrip(".")
            functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            if sum(not each.name.startswith("_") for each in functions) > MAX_METHODS:
                yield name
        yield from too_long(node, name)


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function without its docstring."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_the_measure_of_length_counts_code() -> None:
    code = "x = 1\n    " * MAX_LINES
    assert list(too_long(ast.parse(f"class A:\n  def f(self):\n    {code}"))) == ["A.f"]
    short = "x = 1\n    " * (MAX_LINES - 2)
    text = "\n".join(["word"] * MAX_LINES)
    assert not list(too_long(ast.parse(f'def f():\n    """{text}"""\n    {short}')))
    methods = "".join(f"  def f{k}(self): ...\n" for k in range(MAX_METHODS + 1))
    assert list(too_long(ast.parse(f"class A:\n{methods}"))) == ["A"]


@pytest.mark.slow
def test_docstring_sections_are_numpydoc() -> None:
    """An entry is `name : type`, with the description indented below."""
    modules = [*MODULES, *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "studies").rglob("*.py")]
    wrong = [
        f"{name_of(path)}: {entry}"
        for path in modules
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for entry in wrong_entries(ast.get_docstring(node) or "")
    ]
    assert not wrong


@pytest.mark.slow
def test_docstrings_begin_with_what_one_would_search_for() -> None:
    """A first line is a noun phrase or an imperative, not a clause or a fragment."""
    roots = (*ALLOWED, "benchmarks", "studies", "tests", "examples")
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for root in roots
        for path in (ROOT / root).rglob("*.py")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if re.match(r"\s*(What|Who|Whether|Where|Of|The same|Those)\b", str(node.value.value))
    ]
    assert not wrong


def wrong_entries(docstring: str) -> Iterator[str]:
    """Yield unknown sections, and entries without a type or without a description."""
    lines, section = docstring.splitlines(), ""
    for line, below in pairwise([*lines, ""]):
        if below and not below.strip("-"):
            section = line
            if section not in SECTIONS:
                yield section
        elif section in TYPED_SECTIONS | {"Raises"} and line.strip("-") and line[0] != " ":
            name, _, kind = line.rpartition(" : ")
            if section == "Raises":
                is_entry = re.fullmatch(r"[A-Z]\w+(, [A-Z]\w+)*", line) is not None
            else:
                is_named = re.fullmatch(r"(\*{0,2}\w+(, |$))+", name) is not None
                is_entry = is_type(kind) and (is_named or (not name and section != "Parameters"))
            if not is_entry or not below.startswith("    "):
                yield line


def is_type(text: str) -> bool:
    """Return whether a text is a type with an optional shape, such as `ndarray, (n,)`."""
    text = re.sub(r"\{[^{}]*\}|\"[^\"]*\"", "Literal", text)
    while (inner := re.sub(r"\([^()]*\)|\[[^][]*\]", "", text)) != text:
        text = inner
    words = re.findall(r"[\w.]+", text)
    return bool(words) and re.search(r"[^\w., ]", text) is None and all(map(is_of_type, words))


def is_of_type(word: str) -> bool:
    return word in WORDS_OF_TYPES or word.rpartition(".")[2][:1].isupper() or word == "torch.device"


def test_the_check_of_docstrings_knows_types_from_prose() -> None:
    right = "Parameters\n---\nx, y : dict of str to Tensor, (P, d), or None\n    Rows.\n"
    assert not list(wrong_entries(right))
    kinds = '{"a", "b"} or None', "Callable[[Run], dict[str, int]]", "nn.Module", "(E, b), int"
    assert all(map(is_type, kinds))
    prose = "number of rounds.", "(n,) of each peer", "x -> y", "int; 0: none", "the model", "(n,)"
    assert not any(map(is_type, prose))
    for entry in ("x : rows of the stack.", "x : int", "x", "int\n    Rows."):
        assert list(wrong_entries(f"Parameters\n---\n{entry}\n")), entry
    assert list(wrong_entries("Raises\n---\nValueError : it is wrong.\n"))
    assert list(wrong_entries("Raises\n---\nValueError\n"))
    assert list(wrong_entries("Returns\n---\nThe rows of the stack.\n"))
    assert list(wrong_entries("Buffers\n---\n"))
    assert not list(wrong_entries("Returns\n---\nint or None\n    Number of rows.\n"))


@pytest.mark.slow
def test_nothing_on_the_way_of_a_message_or_a_key_is_executed() -> None:
    """No pickle, no eval: what peers and users send is data."""
    offenders = [f"{name_of(path)}: {what}" for path in MODULES for what in executed(path)]
    assert not offenders


def test_ray_starts_in_one_place_which_makes_it_private() -> None:
    """For run --nodes, compare, sweep, worth, league and reproduce; studies start none."""
    starts = {
        name_of(path)
        for path in MODULES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "ray.init"
    }
    assert starts == {"app/runners/cluster.py"}


def executed(path: Path) -> Iterator[str]:
    """Yield the imports and calls of a module that may execute data."""
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
    """Relay and nodes import none of the packages for those who start runs."""
    rooms = {"config": {"config"}, "runs": {"config", "runs"}}
    stay = {"lab", "cli", "comparisons", "runners", "dashboard", "report"}
    for path in MODULES:
        if top(path) == "coterie":  # of it only the names are shipped, each loaded when asked for
            continue
        room = path.relative_to(ROOT).parts[1] if top(path) == "app" else None
        commands = name_of(path).startswith("app/institution/commands/")
        if room in stay or commands or name_of(path) == "app/__main__.py":
            continue
        used = {
            name.split(".")[2] for name in imports(parse(path)) if name.startswith("coterie.app.")
        }
        assert not used & stay, path
        assert used <= rooms.get(str(room), used), path


def test_private_names_of_flower_and_ray_have_one_module_each() -> None:
    """All else stands on what they document, so that it works with their next versions."""
    modules = {name_of(path) for path in MODULES if any(map(is_undocumented, named(parse(path))))}
    assert modules == {"app/private_ray.py", "strategies/flower/private.py"}


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of a module: imports, attributes, and texts that are such a name."""
    yield from imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"\w+(\.\w+)+", str(node.value)):
            yield str(node.value)


def is_undocumented(name: str) -> bool:
    """Return whether a dotted name is one of flwr or Ray that they do not document."""
    library, *path = name.split(".")
    if library == "ray":
        return any(part.startswith("_") for part in path)
    if library != "flwr" or name in private_names.PUBLIC:
        return False
    module, _, last = name.rpartition(".")
    return module not in private_names.PUBLIC or last not in import_module(module).__all__


def test_the_check_of_private_names_sees_every_way_to_them() -> None:
    public = "from flwr.app import Array", "import flwr.simulation", "import ray; ray.init()"
    private = (
        "from flwr.app.message import array", "import flwr.proto", "from flwr import common",
        "from flwr.app import Hidden", "import_module('flwr.common.config')",
        "def f():\n  from ray._private import services", "import ray; ray._private.worker.x = 1",
    )  # fmt: skip
    assert [any(map(is_undocumented, named(ast.parse(code)))) for code in public] == 3 * [False]
    assert [any(map(is_undocumented, named(ast.parse(code)))) for code in private] == 7 * [True]


def test_nothing_is_imported_by_the_name_of_its_folder() -> None:
    """Plain `datasets` is another library's; ours is `coterie.datasets`."""
    folders = set(ALLOWED) - {"coterie"}
    for path in MODULES:
        names = {name.partition(".")[0] for name in imports(parse(path))}
        assert not names & (folders | {"flwr_datasets"}), path
        assert not names & {"tests", "benchmarks", "studies"}, path


@pytest.mark.e2e
def test_no_process_but_a_node_s_loads_torch() -> None:
    """Every module but those of `TORCH` loads without it: relay, launcher, rules, datasets."""
    free = [
        module_of(path)
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
    """The relay forwards references; it imports nothing that decodes tensors or records."""
    for path in MODULES:
        if top(path) != "strategies" and name_of(path) not in RELAY:
            continue
        tree = parse(path)
        imported = set(imports(tree))
        assert not {name.partition(".")[0] for name in imported} & {"torch", "safetensors"}
        imported -= KEYS_OF_PEERS
        closed = ("coterie.app.node", "coterie.app.institution.security", "coterie.app.wire")
        assert not [name for name in imported if name.startswith(closed)]
        decoding = {"numpy", "to_numpy_ndarrays", "to_torch_state_dict"}
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not attributes & decoding, path
