"""The commands of `python -m app`.

Exit codes: 0 done, 1 the run failed, 2 the request was wrong and nothing was started or written,
130 stopped by the user.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from app.cli import comparing, listing, status
from app.config import defaults
from app.config.config import Config, ConfigError
from app.config.items import read_items, read_toml
from app.config.keys import nearest
from app.runners import flower
from app.runners.superlink import ROOT, FlowerError
from app.runners.sweep import SweepError
from app.runs import progress
from app.runs.rundir import ResultsError
from datasets.problem import DataError


class _Parser(argparse.ArgumentParser):
    """What is wrong with a command line is one line, too."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} ({self.prog} --help says more)")


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; the exit code."""
    console = Console(highlight=False, markup=False)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    name, *rest = arguments
    try:
        if name not in COMMANDS:
            raise ConfigError(f'unknown command "{name}"{nearest(name, COMMANDS)}')
        command = COMMANDS[name]
        parser = _Parser(f"python -m app {name}", description=command.about)
        command.execute(parser, rest, console)
    except (ConfigError, DataError, ResultsError) as error:
        return _complain(str(error), 2)
    except FlowerError as error:
        return _complain(f"Flower could not start: {error}", 1)
    except (flower.RunError, SweepError) as error:
        return _complain(f"the run failed: {error}", 1)
    except OSError as error:
        if error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}", 1)
    except KeyboardInterrupt:
        return _complain("stopped", 130)
    return 0


def run(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`run`: defaults < preset < overrides, on this machine or a configured federation."""
    _add_items(parser)
    _add_place(parser)
    parser.add_argument("--out", help="directory of run directories (runs)")
    parser.add_argument("--name", help="name of the run directory")
    given = parser.parse_intermixed_args(arguments)
    _, flat = read_items(given.items)
    flat |= {key: getattr(given, key) for key in ("out", "name") if getattr(given, key)}
    config = Config.from_flat(flat).located(time.strftime("%Y%m%d-%H%M%S"))
    if config.resume:
        raise ConfigError("resume = true is what `python -m app resume RUN_DIR` sets")
    if Path(config.run_dir).exists():
        raise ConfigError(f"{config.run_dir} exists already: choose another name, or resume it")
    _start(config, given, console)


def compare(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`compare`: the same experiment for several methods and seeds."""
    _add_items(parser)
    comparing.options(parser)
    given = parser.parse_intermixed_args(arguments)
    preset, flat = read_items(given.items)
    page = comparing.run_comparison(given, preset, flat, console)
    console.print(f"comparison: {page}", soft_wrap=True)


def resume(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`resume`: the same run in the same directory, from its last checkpoint."""
    parser.add_argument("run_dir", type=Path)
    _add_place(parser)
    given = parser.parse_args(arguments)
    run_dir = given.run_dir.absolute()
    if not (run_dir / "config.toml").is_file():
        raise ConfigError(f"{given.run_dir} is not a run directory: it has no config.toml")
    config = Config.from_flat(defaults.of_project() | read_toml(run_dir / "config.toml"))
    if progress.read(run_dir).get("status") == "finished":
        raise ConfigError(f"{given.run_dir} is finished already: nothing to resume")
    config = replace(config, name=run_dir.name, run_dir=str(run_dir), resume=True)
    _start(config, given, console)


def report(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`report`: summary and report of a run, finished or not."""
    parser.add_argument("run_dir", type=Path)
    flower.conclude(parser.parse_args(arguments).run_dir, console)


def show(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`list`: one or all of the catalogue's tables."""
    parser.add_argument("what", nargs="?", choices=listing.LISTS)
    what = parser.parse_args(arguments).what
    listing.show(console, [what] if what else listing.LISTS)


def tell(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`status`: a run on this machine, or what a SuperLink says."""
    parser.add_argument("what", nargs="?", metavar="RUN_DIR|CONNECTION", help="(the newest run)")
    status.show(console, parser.parse_args(arguments).what)


def certificates(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`certificates`: what TLS and SuperNode authentication need, for the relay and for nodes."""
    from app.cli import certificates as transport  # cryptography: only where it is needed

    parser.add_argument("directory", type=Path)
    parser.add_argument("--hosts", nargs="+", help="names and addresses of the relay")
    parser.add_argument("--nodes", nargs="+", default=[], help="names of SuperNodes")
    parser.add_argument("--days", type=int, default=365, help="validity of the certificate (365)")
    parser.add_argument("--register", metavar="CONNECTION", help="let the nodes in: the SuperLink")
    given = parser.parse_args(arguments)
    if not given.hosts and not given.nodes:
        raise ConfigError("certificates: name the relay's --hosts, or --nodes, or both")
    if given.hosts:
        transport.for_relay(given.directory, given.hosts, given.days)
        console.print(f"{given.directory / 'relay'}: certificate for {', '.join(given.hosts)}")
    for node in given.nodes:
        public = transport.for_node(given.directory, node)
        console.print(f"{public.parent}: key of {node}", soft_wrap=True)
        if given.register:
            console.print(transport.register(public, given.register), soft_wrap=True)


def keys(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`keys`: for sealed letters."""
    from app.cli import keying  # cryptography: only where it is needed
    from app.security.trust import KeysError

    keying.options(parser)
    try:
        keying.manage_keys(parser.parse_args(arguments), console)
    except KeysError as error:
        raise ConfigError(str(error)) from None


def write_defaults(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """`defaults`: bring pyproject.toml up to date with the dataclasses."""
    parser.parse_args(arguments)
    path = ROOT / "pyproject.toml"
    path.write_text(defaults.written_into(path.read_text("utf-8")), encoding="utf-8")
    console.print(f"wrote every key with its default to {path}")


@dataclass(frozen=True)
class Command:
    """One command: what `--help` says of its arguments and of itself, and what does it."""

    arguments: str
    about: str
    execute: Callable[[argparse.ArgumentParser, list[str], Console], None]


COMMANDS: Mapping[str, Command] = {
    "run": Command("[PRESET.toml] [key=value ...]", "run an experiment", run),
    "compare": Command(
        "[PRESET.toml] [key=value ...]",
        "run an experiment for several methods and seeds",
        compare,
    ),
    "resume": Command("RUN_DIR", "continue a run that was stopped", resume),
    "report": Command("RUN_DIR", "write summary and report of a run again", report),
    "status": Command(
        "[RUN_DIR|CONNECTION]", "who takes part, who is missing, what went wrong", tell
    ),
    "list": Command("[methods|datasets|...]", "what there is to choose from", show),
    "certificates": Command(
        "DIRECTORY", "keys and certificates of a deployment's transport", certificates
    ),
    "keys": Command("new|trust", "keys of a peer, and of those whom it trusts", keys),
    "defaults": Command("", "write every key with its default to pyproject.toml", write_defaults),
}


def _help() -> str:
    lines = [f"{f'{name} {of.arguments}':<40}{of.about}" for name, of in COMMANDS.items()]
    last = "Each takes --help. Keys that are not given have the values in pyproject.toml."
    return "\n".join(["python -m app COMMAND ...", "", *lines, "", last])


def _add_items(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value")


def _add_place(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--nodes", type=int, help="Flower nodes that share the peers (2)")
    place.add_argument("--federation", help="SuperLink connection of your Flower configuration")


def _start(config: Config, given: argparse.Namespace, console: Console) -> None:
    if given.federation:
        flower.deploy(config, given.federation, console)
    else:
        flower.simulate(config, given.nodes, console)


def _complain(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code
