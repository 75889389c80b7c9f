"""`coterie policy`: write an institution's policy, and check it, alone or against a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.config.items import sources_of
from coterie.app.config.schema import Scalar
from coterie.app.institution.security.files import closed
from coterie.app.institution.security.policy import PolicyError, locate, policy_of, read_policy
from coterie.app.institution.security.run_check import check_run
from coterie.app.runs import atomic


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write or check a policy file."""
    commands = parser.add_subparsers(dest="what", required=True)
    init = commands.add_parser("init", help="write a policy file: strict, with comments")
    init.add_argument("file", type=Path, metavar="POLICY.toml")
    init.add_argument("items", nargs="*", metavar="key=value", help="such as data.sets=table")
    check = commands.add_parser("check", help="check the file, and a run against it")
    check.add_argument("file", type=Path, metavar="POLICY.toml")
    check.add_argument("items", nargs="*", metavar="PRESET.toml|key=value", help="of the run")
    options = parser.parse_args(arguments)
    if options.what == "init":
        write(options.file, options.items, console)
    else:
        _check(options.file, options.items, console)


def write(file: Path, items: list[str], console: Console) -> None:
    """Write a policy of key=value items; PolicyError: the file exists, or an item is wrong."""
    if file.exists():
        raise PolicyError(f"{file} exists already: change it with an editor")
    policy = policy_of(dict(map(_item, items)))
    with closed(0o022):
        file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, policy.toml())
    file.chmod(0o644)
    console.print(f'{file}: read it, then start the node with policy="{file}"')


def _item(item: str) -> tuple[str, Scalar]:
    key, equals, text = item.partition("=")
    if not equals:
        raise PolicyError(f"{item} needs a value: {item}=...")
    try:
        return key, locate(key)[1].read(text)
    except ValueError as error:
        raise PolicyError(f"{item}: {error}") from None


def _check(file: Path, items: list[str], console: Console) -> None:
    policy = read_policy(file)
    if not items:
        console.print(f"{file} is in order")
        return
    config = Config.of(*sources_of(items)[1], deployed=True)
    check_run(policy, config)
    approval = "a person must approve it" if policy.approval == "digest" else "it may start"
    digest = config_digest_of(config).hex()
    console.print(f"{file} allows the run; {approval}. Its digest: {digest}")
