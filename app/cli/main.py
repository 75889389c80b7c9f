"""The commands of `coterie`: which there are, and what their errors become.

Exit codes: 0 done, 1 a run failed, 2 the request was wrong and nothing was started or written,
130 stopped by the user. A command is a module with a function `execute`; it is imported when it is
asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn


@dataclass(frozen=True)
class Command:
    """One command: its module, and what `--help` says of its arguments and of itself."""

    module: str
    arguments: str
    about: str


COMMANDS: Mapping[str, Command] = {
    "run": Command("run", "[PRESET.toml] [key=value ...]", "run an experiment"),
    "compare": Command(
        "compare",
        "[PRESET.toml] [key=value ...]",
        "run an experiment for several methods and seeds",
    ),
    "resume": Command("resume", "RUN_DIR", "continue a run that was stopped"),
    "report": Command("report", "RUN_DIR", "write summary and report of a run again"),
    "predict": Command(
        "predict", "RUN_DIR --peer PEER INPUT", "what a peer's model says of new examples"
    ),
    "export": Command(
        "export", "RUN_DIR --peer PEER FILE", "a peer's model as a .pt2 or .onnx file"
    ),
    "schema": Command(
        "schema", "TABLE.csv|schema.toml", "what institutions agree on of their tables' columns"
    ),
    "status": Command(
        "status", "[RUN_DIR|CONNECTION]", "who takes part, who is missing, what went wrong"
    ),
    "dashboard": Command("dashboard", "[RUN_DIR]", "a page that shows runs while they go on"),
    "list": Command("listing", "[methods|datasets|...|NAME]", "what there is to choose from"),
    "certificates": Command(
        "certificates", "DIRECTORY", "keys and certificates of a deployment's transport"
    ),
    "keys": Command("keys", "new|trust", "keys of a peer, and of those whom it trusts"),
    "policy": Command(
        "policy", "init|check POLICY.toml", "what a run may do on an institution's node"
    ),
    "approve": Command(
        "approve", "RUN_DIR|PRESET.toml", "let one run start on an institution's node"
    ),
    "preflight": Command(
        "preflight", "--node-config ...", "whether an institution's node is ready"
    ),
    "defaults": Command("defaults", "", "write every key with its default to pyproject.toml"),
}


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    from coterie.app.config.keys import ConfigError, nearest  # here and below: help comes at once
    from coterie.app.runners.errors import FlowerError, RunError
    from coterie.app.runs.files import ResultsError
    from coterie.app.runs.terminal import Terminal
    from coterie.datasets.problem import DataError

    class Parser(argparse.ArgumentParser):
        """What is wrong with a command line is one line, too."""

        def error(self, message: str) -> NoReturn:
            raise ConfigError(f"{message} ({self.prog} --help says more)")

    name, *rest = arguments
    try:
        if name not in COMMANDS:
            raise ConfigError(f'unknown command "{name}"{nearest(name, COMMANDS)}')
        command = COMMANDS[name]
        parser = Parser(f"coterie {name}", description=command.about)
        execute = import_module(f"coterie.app.cli.{command.module}").execute
        execute(parser, rest, Terminal())
    except (ConfigError, DataError, ResultsError) as error:
        return _complain(str(error), 2)
    except FlowerError as error:
        return _complain(f"Flower could not start: {error}", 1)
    except RunError as error:
        return _complain(f"the run failed: {error}", 1)
    except OSError as error:
        if error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}", 1)
    except KeyboardInterrupt:
        return _complain("stopped", 130)
    return 0


def _help() -> str:
    lines = [f"{f'{name} {of.arguments}':<40}{of.about}" for name, of in COMMANDS.items()]
    last = "Each takes --help. Keys that are not given have the values in pyproject.toml."
    return "\n".join(["coterie COMMAND ...", "", *lines, "", last])


def _complain(line: str, code: int) -> int:
    from coterie.app.runs.terminal import printable

    print(printable(line), file=sys.stderr)
    return code
