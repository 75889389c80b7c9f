"""Test the wheel in a separate environment and an empty directory, without the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from flwr.cli.build import build_fab_from_disk
from nbclient import NotebookClient

from coterie.app.runners import bundle
from coterie.app.runners.superlink import QUIET
from tests.checkout import bare_environment, copy, end_processes

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a source distribution of what git tracks, and of the wheel built from it."""
    place = tmp_path_factory.mktemp("distributions")
    copy(place / "checkout")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place)]
    done = subprocess.run([*build, str(place / "checkout")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (built,) = distributions.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this one's libraries, another `datasets`, and our wheel; its bin."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    packages = next(place.glob("lib/python*/site-packages"))
    # A path in a .pth file: the .pth files of that folder, ours among them, are not read.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (packages / "datasets").mkdir()
    (packages / "datasets" / "__init__.py").write_text("name = 'another library'\n")
    python = ["--python", str(place / "bin" / "python")]
    # Its copy: a build writes beside the sources, and another worker builds the same ones.
    example = distributions / "checkout" / "examples" / "plugin"
    subprocess.run([*PIP, *python, "install", "--no-deps", str(wheel)], check=True)
    install = ["install", "--no-deps", "--no-build-isolation", str(example)]
    subprocess.run([*PIP, *python, *install], check=True)
    for script in Path(sys.executable).parent.glob("fl*w*"):  # Flower's commands
        _, _, rest = script.read_text().partition("\n")
        (place / "bin" / script.name).write_text(f"#!{place / 'bin' / 'python'}\n{rest}")
        (place / "bin" / script.name).chmod(0o755)
    return place / "bin"


@pytest.mark.e2e
@pytest.mark.long
def test_the_wheel_from_the_sdist_holds_one_name_and_every_file_as_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {
            name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name
        }
    folders = ("app", "clients", "datasets", "strategies", "league", "papers", "presets", "recipes")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    paths += [
        path for path in (ROOT / "examples/plugin").rglob("*.*") if "egg-info" not in str(path)
    ]
    ours = {
        f"coterie/{path.relative_to(ROOT).as_posix()}": path.read_bytes()
        for path in paths
        if path.is_file() and path.suffix != ".pyc"
    }
    ours |= {f"coterie/{path.name}": path.read_bytes() for path in (ROOT / "coterie").glob("*.py")}
    assert files.keys() == ours.keys()
    assert files == ours


@pytest.mark.e2e
@pytest.mark.long
def test_the_sdist_has_what_a_deployment_needs(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    deployment = [path for room in ("deploy", "docker") for path in (ROOT / room).rglob("*.*")]
    wanted = {str(path.relative_to(ROOT)) for path in deployment if path.suffix != ".pyc"}
    assert names >= wanted | {"LICENSE", "CHANGELOG.md", "README.md", "pyproject.toml"}
    assert not [name for name in names if name.startswith("tests")]


@pytest.mark.e2e
@pytest.mark.long
def test_an_index_accepts_the_distributions(distributions: Path) -> None:
    check = [sys.executable, "-m", "twine", "--no-color", "check", "--strict"]
    files = [str(path) for path in distributions.glob("coterie-*")]
    assert len(files) == 2
    done = subprocess.run([*check, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_an_editor_finds_every_package_through_a_link() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    packages = {name.split(".")[1] for name in tool["setuptools"]["packages"] if "." in name}
    links = {
        path.name: path.readlink() for path in (ROOT / "coterie").iterdir() if path.is_symlink()
    }
    assert links == {name: Path("..", name) for name in packages}
    excluded = {"src", *(f"coterie/{name}" for name in links)}
    assert set(tool["ruff"]["extend-exclude"]) == excluded


@pytest.mark.e2e
@pytest.mark.long
def test_the_installed_package_works_without_a_checkout(environment: Path, tmp_path: Path) -> None:
    def call(*command: str) -> str:
        program = [str(environment / command[0]), *command[1:]]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert call("coterie", "--version") == f"coterie {metadata.version('coterie')}\n"
    see = "import coterie, datasets; print(coterie.clients.__path__[0], datasets.name)"
    places = call("python", "-c", f"import coterie.clients, coterie.datasets; {see}")
    assert str(environment.parent) in places
    assert "another library" in places
    assert "cobo/fashion-mnist" in call("coterie", "list", "presets")
    call("coterie", "run", "num-server-rounds=2", "evaluate-every=2", "--name", "alone")
    call(
        "coterie", "run", "num-server-rounds=2", "evaluate-every=2", "--nodes", "2", "--name", "two"
    )
    metrics = [
        (tmp_path / "runs" / name / "metrics.jsonl").read_text() for name in ("alone", "two")
    ]
    assert metrics[0] == metrics[1]
    tiny = ("num-server-rounds=2", "evaluate-every=2", "peers=4", "partition.clusters=2")
    call("coterie", "compare", *tiny, "--methods", "local,fedavg", "--seeds", "1")
    call("coterie", "run", "method=nearest", "model=two-layers", "dataset=clinics", "peers=4",
         "partition.kind=natural", "num-server-rounds=2", "--name", "plugin")  # fmt: skip
    call("coterie", "run", "dpfl/digits-flips", *tiny, "dpfl.init-epochs=1", "--name", "preset")
    assert not (tmp_path / "pyproject.toml").exists()


@pytest.mark.e2e
@pytest.mark.long
def test_the_flower_app_is_the_same_from_wheel_and_checkout(
    environment: Path, tmp_path: Path
) -> None:
    """Nodes take an app by its digest, wherever it was built."""
    written = tmp_path / "app"
    subprocess.run([environment / "coterie", "app", written], check=True, capture_output=True)
    bundle.write_app(tmp_path / "ours" / "app")
    assert build_fab_from_disk(written) == build_fab_from_disk(tmp_path / "ours" / "app")
    again = subprocess.run(
        [environment / "coterie", "app", written], capture_output=True, text=True
    )
    assert again.returncode == 2
    assert str(written) in again.stderr


@pytest.mark.e2e
@pytest.mark.long
def test_flower_runs_the_app_of_an_installed_wheel(environment: Path, tmp_path: Path) -> None:
    """Run the app in its folder, which holds a `coterie` without commands and pages."""
    app = tmp_path / "digits"
    subprocess.run([environment / "coterie", "app", app], check=True, capture_output=True)
    about = bare_environment(tmp_path) | QUIET
    about["PATH"] = f"{environment}:{about['PATH']}"
    tiny = "num-server-rounds=2 evaluate-every=2 peers=4 partition.clusters=2 local-steps=1"
    command = [str(environment / "flwr"), "run", ".", "--stream", "--run-config", tiny]
    try:
        done = subprocess.run(command, cwd=app, env=about, capture_output=True, text=True)
    finally:
        end_processes(tmp_path)
    result = re.search(r"run directory: (\S+)", done.stdout)
    assert result is not None, done.stdout + done.stderr
    assert Path(result[1]).parent == app / "runs"
    assert (Path(result[1]) / "report.html").exists()


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_for_colab_installs_the_wheel_and_runs(wheel: Path, tmp_path: Path) -> None:
    """In a session without a network: the libraries are there, as most of them are in Colab."""
    notebook = ROOT / "examples" / "notebooks" / "colab.ipynb"
    content = nbformat.reads(notebook.read_text("utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    where = nbformat.v4.new_code_cell("print(coterie.__file__)")  # type: ignore[no-untyped-call]
    content.cells.append(where)
    session, packages = tmp_path / "session", tmp_path / "packages"
    session.mkdir()
    packages.mkdir()
    (session / wheel.name).symlink_to(wheel)
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_TARGET": str(packages)}
    client = NotebookClient(content, timeout=120, resources={"metadata": {"path": str(session)}})
    client.execute(env={**os.environ, **pip, "PYTHONPATH": str(packages), "PATH": commands})
    output = content.cells[-1].outputs[0].text
    assert output.strip() == str(packages / "coterie" / "__init__.py")
    (archive,) = session.glob("runs.zip")
    with zipfile.ZipFile(archive) as results:
        assert any(name.endswith("report.html") for name in results.namelist())
