"""Commands of `coterie`, and exit codes of their errors.

Exit codes: 0 finished; 1 failed, or every peer diverged; 2 refused before anything was started or
written; 3 finished without some peers; 130 interrupted. A command is a module with a function
`execute`, imported on demand.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import coterie

WINGS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "cli": {
        "run": ("[PRESET.toml] [key=value ...]", "run an experiment"),
        "compare": ("[PRESET.toml] [key=value ...]", "run it for several methods and seeds"),
        "sweep": ("[PRESET.toml] key=value,value,...", "run it for several values of keys"),
        "resume": ("RUN_DIR", "continue a run that was stopped"),
        "stop": ("RUN_DIR", "stop a run in progress, here or on a deployment"),
        "report": ("RUN_DIR", "write summary and report of a run again"),
        "figures": ("RUN_OR_COMPARISON", "write figures for a paper as PDF, SVG or PNG"),
        "dashboard": ("[RUN_DIR]", "show runs in progress in the browser"),
        "predict": ("RUN_DIR --peer PEER INPUT", "predict new examples with a peer's model"),
        "export": ("RUN_DIR --peer PEER FILE", "write a peer's model as a .pt2 or .onnx file"),
        "list": ("[methods|datasets|...|NAME]", "list methods and other parts, or keys of one"),
        "plugin": ("DIRECTORY", "write a package with parts of your own, to start from"),
        "app": ("DIRECTORY", "write the Flower app, for `flwr run` and `flwr build`"),
    },
    "institution.commands": {
        "setup": ("relay|member DIRECTORY", "write all that a machine of a consortium needs"),
        "schema": ("TABLE.csv ...|schema.toml", "draft or check the schema of shared columns"),
        "keys": ("new|trust|distrust", "write a peer's keys, or the keys that it trusts"),
        "certificates": ("DIRECTORY", "write keys and certificates for a deployment's transport"),
        "policy": ("init|check POLICY.toml", "write or check the policy of an institution"),
        "preflight": ("--node-config ...", "check that an institution's node is ready"),
        "flower": ("supernode|superexec ...", "run Flower's services of a node, without pauses"),
        "approve": ("RUN_DIR|PRESET.toml", "let one run start on an institution's node"),
        "status": ("[RUN_DIR|CONNECTION]", "show participating and missing peers and errors"),
    },
    "lab.commands": {
        "league": ("run|show|check", "compare all methods on the same problems"),
        "reproduce": ("PAPER/FIGURE ...", "make a paper's table or figure, judge its claims"),
        "contribution": ("RUN_DIR", "measure how much each peer helps every other"),
        "data": ("list|fetch NAME", "list or fetch public data of several institutions"),
    },
}
"""Package in `coterie.app` -> module of a command -> help texts of its arguments and itself."""
COMMANDS = {name: package for package, commands in WINGS.items() for name in commands}
"""Command -> package of its module."""
_TITLES = {"cli": "Research", "institution.commands": "Institution", "lab.commands": "Lab"}
_SYNONYMS = {
    "train": "run", "start": "run", "continue": "resume", "tune": "compare --tune",
    "grid": "sweep", "plot": "figures", "summary": "report", "watch": "dashboard",
    "worth": "contribution",
}  # fmt: skip
"""Common wrong command names -> the intended command."""
_AWAY, _INTERRUPTED = 3, 130


def main(arguments: Sequence[str]) -> int:
    """Run the command of a command line and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        print(f"coterie {coterie.__version__}")
        return 0
    from coterie import errors
    from coterie.app.config import root  # here and below: help is immediate
    from coterie.app.config.keys import ConfigError, nearest
    from coterie.app.runs.terminal import Terminal

    class Parser(argparse.ArgumentParser):
        """Parser that reports a wrong command line as ConfigError."""

        def error(self, message: str) -> NoReturn:
            if "--hold-out" in message:  # its former name
                raise ConfigError("--hold-out SHARE is the key late-peers=SHARE")
            raise ConfigError(f"{message} (see {self.prog} --help)")

    name, *rest = arguments
    try:
        if name not in COMMANDS:
            known = [*COMMANDS, "help"]
            near = nearest(_SYNONYMS.get(name, name), [*known, *_SYNONYMS.values()])
            near = near or f"; the commands are {', '.join(known)}"
            raise ConfigError(f'unknown command "{name}"{near}')
        if root.is_clone(Path()) and Path.cwd() != root.IMPORT_ROOT:
            note = f"note: this is the code of {root.IMPORT_ROOT}, not of the clone in this folder"
            print(note, file=sys.stderr)
        package = COMMANDS[name]
        parser = Parser(f"coterie {name}", description=WINGS[package][name][1])
        import_module(f"coterie.app.{package}.{name}").execute(parser, rest, Terminal())
    except errors.RunError as error:
        heads = {errors.FlowerError: "Flower could not start: ", errors.AwayError: ""}
        line = heads.get(type(error), "the run failed: ") + str(error)
        if notes := getattr(error, "__notes__", ()):
            line = f"{line} ({'; '.join(notes)})"
        return _complain(line, _AWAY if isinstance(error, errors.AwayError) else 1)
    except errors.Error as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt as interruption:
        continuation = f"; continue with: {interruption}" if str(interruption) else ""
        return _complain(f"interrupted{continuation}", _INTERRUPTED)
    except Exception as error:
        if errors.is_users(error):
            traceback.print_exc()
            return _complain(errors.line_of(error), 1)
        if errors.is_full_disk(error):
            return _complain(errors.line_of(error), 1)
        if not isinstance(error, OSError) or error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}", 1)
    return 0


def run_as_program() -> NoReturn:
    """Run the command line of this process and exit; the entry point of `coterie`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode shows ?
    code = main(sys.argv[1:])
    if code == _INTERRUPTED:  # what Ray and PyTorch were doing may crash while they are taken down
        sys.stdout.flush()
        os._exit(code)
    gc.freeze()  # else the end of the process searches PyTorch's objects for cycles: half a second
    sys.exit(code)


def _help() -> str:
    lines = []
    for package, commands in WINGS.items():
        lines += ["", f"{_TITLES[package]}:"]
        lines += [f"  {f'{name} {args}':<40}{about}" for name, (args, about) in commands.items()]
    last = "Each takes --help. Keys that are not given have defaults: coterie list KEY."
    return "\n".join(["coterie COMMAND ...", *lines, "", last])


def _complain(line: str, code: int) -> int:
    from coterie.app.runs.terminal import printable

    print(printable(line), file=sys.stderr)
    return code
