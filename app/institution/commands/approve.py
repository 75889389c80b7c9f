"""`coterie approve`: let one run of a configuration, by its digest, start on this node."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from coterie.app.config import schema
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import bound, config_digest_of
from coterie.app.config.items import sources_of
from coterie.app.config.preflight import scale_of
from coterie.app.config.schema import Scalar
from coterie.app.config.settings import keys
from coterie.app.config.sources import of_record
from coterie.app.institution.security import approval, clearance
from coterie.app.institution.security.privacy_ledger import spent_by_peer
from coterie.app.runs import atomic, files, units
from coterie.datasets.table import dataset_of

_STATISTICS = (
    '# table.scale: in a sealed run, unless data.share-statistics of the policy is "no", this '
    "node sends\n# count, mean and variance of each number column of the training examples, "
    "rounded to three\n# significant digits, to the institutions in its trust file, before "
    "round 1. Afterwards\n# statistics-....csv in the run directory has them.\n"
)


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Show a configuration, ask for confirmation, and approve it."""
    parser.add_argument("items", nargs="+", metavar="RUN_DIR | PRESET.toml|key=value")
    parser.add_argument("--out", type=Path, help="the node's `out`, with a preset")
    parser.add_argument("--digest", help="of the configuration to approve, instead of being asked")
    parser.add_argument("--letters", action="store_true", help="of a run, that [clearance] stopped")
    options = parser.parse_intermixed_args(arguments)
    directory = Path(options.items[0])
    if directory.is_dir():
        if options.out or len(options.items) > 1:
            raise ConfigError(f"{directory} is a run of this node: pass nothing else")
        config = _arrived(directory)
        out = directory.absolute().parent
    else:
        if options.out is None:
            raise ConfigError("missing --out DIRECTORY: the node's `out`")
        config = Config.of(*sources_of(options.items)[1], deployed=True)
        out = options.out
    if sys.platform != "win32" and out.exists() and out.stat().st_uid != os.geteuid():
        raise ConfigError(f"{out} is another user's: approve as the user that runs the node")
    digest = config_digest_of(config).hex()
    if options.letters:
        digest = clearance.digest_for_letters(digest, directory.absolute().name)
        sheet = clearance.read(directory)
        if sheet is None:
            raise ConfigError(f"{directory} has no {files.CLEARANCE}: no letter of it was measured")
        console.print(clearance.page(sheet), markup=False, soft_wrap=True)
    else:
        if scale_of(config) == "common":
            console.print(_STATISTICS)
        for line in _lines(config, out):
            console.print(line)
    console.print(
        f"\nThe digest of {'these letters' if options.letters else 'this configuration'}: {digest}"
    )
    what = "the letters of this run" if options.letters else "one run of it"
    if options.digest is None:
        confirm(f"Type yes to approve {what}: ", "not approved", f"add --digest {digest}")
    elif options.digest != digest:
        raise ConfigError("not approved: the digest differs from --digest")
    approval.approve(out, digest)
    console.print(f"approved, for one run: {digest}")


def _lines(config: Config, out: Path) -> Iterator[str]:
    options, privacy = config.dataset_options, config.privacy
    yield f"method   {schema.written(config.label)}, {config.peers} peers, " + units.plural(
        config.num_server_rounds, "round"
    )
    yield f"data     {schema.written(config.dataset)}"
    for key in ("columns", "label", "classes"):
        if hasattr(options, key):
            yield f"{key:<8} {schema.written(getattr(options, key))}"
    if privacy.kind == "none":
        yield "privacy  no differential privacy"
    else:
        limit = f"at most {privacy.budget:g} in all runs" if privacy.budget else "without a limit"
        yield f"privacy  epsilon {limit}, delta {privacy.delta:g}, noise {privacy.noise:g}"
        for peer, spent in spent_by_peer(out / approval.OWN, privacy.delta).items():
            line = f"spent    epsilon {spent:.2f} of peer {peer}, in all runs on this node"
            left = max(0.0, privacy.budget - spent)
            yield f"{line}; {left:.2f} left" if privacy.budget else line
    yield (
        f"time     at most {config.round_seconds:g} s per round and {config.join_seconds:g} s for "
        "all to join (the operator may change these)"
    )
    now = bound(config)
    usual = {key: option.default for key, (_, option) in keys().items()}
    usual["local-steps"] = dataset_of(config.dataset).local_steps
    yield "\nKeys that differ from the defaults; all others have them:"
    yield from (
        f"{key} = {schema.written(value)}"
        for key, value in now.items()
        if key not in usual or usual[key] != value
    )
    last = _last_allowed(out)
    if last is None:
        yield "\nNo run has been allowed here before."
        return
    if last[1] is None:
        yield f"\nThis version cannot read the last run that was allowed here, {last[0]}."
        return
    name, before = last[0], bound(last[1])
    changed = [
        f"{key} = {_or_unused(now, key)} (was {_or_unused(before, key)})"
        for key in {**now, **before}
        if key not in now or key not in before or now[key] != before[key]
    ]
    yield f"\nSince the last run that was allowed here, {schema.written(name)}:"
    yield from changed or ["nothing has changed"]


def _or_unused(flat: Mapping[str, Scalar], key: str) -> str:
    return schema.written(flat[key]) if key in flat else "unused"


def _last_allowed(out: Path) -> tuple[str, Config | None] | None:
    """Return name and configuration (None: of another version) of the last run allowed here."""
    try:
        allowed = [
            (str(line["time"]), path.parent, str(line["digest"]))
            for path in out.glob(f"*/{approval.DECISIONS}")
            for line in atomic.lines(path)
            if line["decision"] == "allowed"
        ]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"the decisions in {out} are damaged: {error}") from None
    if not allowed:
        return None
    _, run, digest = max(allowed)
    with suppress(ConfigError):
        return run.name, Config.of(of_record(approval.config_file(run, digest)))
    return run.name, None


def _arrived(directory: Path) -> Config:
    """Return the configuration sent to this node; ConfigError if there is none or it changed."""
    file, digest = approval.newest_config(directory)
    config = Config.of(of_record(file))
    if config_digest_of(config).hex() != digest:
        raise ConfigError(f"{file} was changed: it is not the configuration that was received")
    return config


def confirm(question: str, otherwise: str, remedy: str) -> None:
    """Raise ConfigError unless a person at the terminal types yes."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{otherwise}: no terminal to ask; {remedy}")
    answer = ""
    with suppress(EOFError):
        answer = input(question)
    if answer.strip().lower() != "yes":
        raise ConfigError(otherwise)
