"""An institution's policy: what a run may do on this machine.

`policy.toml` is written and read by the institution (`python -m app policy`); nothing that a run or
the relay says changes it. A node without one takes part in no run, and a run outside it is refused
before any data are read.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from app.config import schema
from app.config.config import Config
from app.config.keys import flatten, nearest
from app.config.registry import METHODS
from app.config.schema import Scalar
from datasets import plugins
from datasets.own.institutions import words
from datasets.problem import DataError
from datasets.table import DATASETS, dataset_of

Disclosure = Literal["all", "loss", "none"]
ANY = "any"


class PolicyError(ValueError):
    """A run is outside the policy, or the policy file is wrong; names the key and the remedy."""


@dataclass(frozen=True)
class DataPolicy:
    """[data]: which data a run may use. The limits are for data that only the institution has
    (`table`, `image-folder`, `text`, `arrays`), not for published or made-up data sets.

    Attributes
    ----------
    sets : names of the data sets that a run may use, as in "table, digits".
    columns : columns of the table that a run may learn from.
    label : columns that a run may predict.
    classes : values of the label, in the order of the model's outputs; "": a number is predicted.
    mean : of each column or channel, if all institutions have agreed on it; a run with any other
        is refused. "": each institution's own, which never leave it.
    std : the same for the standard deviation.
    least-examples : that each of the training, test and validation part must have; and each class
        of the test part, for what is measured by class to be told.
    least-batch-size : examples that a gradient must be taken over.
    """  # noqa: D205

    sets: str = ANY
    columns: str = ANY
    label: str = ANY
    classes: str = ANY
    mean: str = ""
    std: str = ""
    least_examples: int = 20
    least_batch_size: int = 8


@dataclass(frozen=True)
class ReportPolicy:
    """[reports]: what the relay is told about models. Every number about own data is rounded to
    what the number of examples supports.

    Attributes
    ----------
    disclosure : "all", "loss" (no accuracies) or "none" (neither metrics nor weights).
    training : whether metrics of the training examples are told, too.
    """  # noqa: D205

    disclosure: Disclosure = "all"
    training: bool = False


@dataclass(frozen=True)
class AnswerPolicy:
    """[answers]: how much may be asked. An answer is computed on own data at another's model.

    Attributes
    ----------
    most-a-round : answers that may be given in one round.
    most-a-recipient : answers that one peer may get in one run.
    most-in-all : answers in all runs together, as the ledger in the node's `out` counts them.
    most-repeats : times that a round which is not committed may be played again.
    """

    most_a_round: int = 32
    most_a_recipient: int = 500
    most_in_all: int = 10_000
    most_repeats: int = 3


@dataclass(frozen=True)
class Policy:
    """What a run may do on this machine; nothing that a run says changes it.

    Attributes
    ----------
    approval : "digest": a person here approves each run by its configuration (python -m app
        approve). "none": whatever keeps to this file may run; then methods, data.sets and, of a
        table, data.columns and data.label must name what is allowed.
    sealing : whether a run's letters must be sealed.
    methods : names of the methods that may run.
    most-peers : peers that a run may have; letters go to those in the trust file only.
    most-rounds : rounds that a run may have.
    """

    approval: Literal["digest", "none"] = "digest"
    sealing: bool = True
    methods: str = ANY
    most_peers: int = 100
    most_rounds: int = 500
    data: DataPolicy = field(default_factory=DataPolicy)
    reports: ReportPolicy = field(default_factory=ReportPolicy)
    answers: AnswerPolicy = field(default_factory=AnswerPolicy)

    def check(self) -> None:
        """Refuse names that do not exist, limits below 1 and, without approval, open doors.

        Raises
        ------
        PolicyError : names key and remedy.
        """
        for key, text, known in (
            ("methods", self.methods, {*METHODS, *plugins.installed("method")}),
            ("data.sets", self.data.sets, {*DATASETS, *plugins.installed("dataset")}),
        ):
            for name in words(text) if text != ANY else ():
                if name not in known:
                    raise PolicyError(f'{key}: there is no "{name}"{nearest(name, known)}')
        for key, value in self.flat().items():
            if type(value) is int and value < 1 and key != "answers.most-repeats":
                raise PolicyError(f"{key} = {value} allows nothing: write at least 1")
        if self.approval == "none":
            open_ = {"methods": self.methods, "data.sets": self.data.sets}
            if "table" in words(self.data.sets):
                open_ |= {"data.columns": self.data.columns, "data.label": self.data.label}
            for key, text in open_.items():
                if text == ANY:
                    raise PolicyError(
                        f'{key} = "any" needs approval = "digest": without a person\'s approval '
                        f"{key} must name what is allowed"
                    )

    def flat(self) -> dict[str, Scalar]:
        """Dotted key -> value."""
        parts = {"": self, "data": self.data, "reports": self.reports, "answers": self.answers}
        return {
            f"{table}.{key}" if table else key: value
            for table, part in parts.items()
            for key, value in schema.values(part).items()
        }

    def toml(self) -> str:
        """The file, with a comment for each key."""
        blocks = []
        for table, kind in TABLES.items():
            about, described = _documentation(kind)
            header = f"[{table}]\n" if table else ""
            lines = [header + _comment(about.removeprefix(f"[{table}]: "))]
            part = getattr(self, table) if table else self
            for key, value in schema.values(part).items():
                lines.append(_comment(described[key]) + f"{key} = {schema.written(value)}\n")
            blocks.append("\n".join(lines))
        return "\n".join(blocks)


TABLES: Mapping[str, type] = {
    "": Policy,
    "data": DataPolicy,
    "reports": ReportPolicy,
    "answers": AnswerPolicy,
}
"""Table of policy.toml -> its dataclass."""


def read_policy(path: Path) -> Policy:
    """Read a policy file.

    Raises
    ------
    PolicyError
        It is missing or wrong, or others may write to it; names the file, the key and the remedy.
    """
    try:
        if path.stat().st_mode & 0o022:
            raise PolicyError(f"others may write to it: chmod go-w {path}")
        return policy_of(flatten(tomllib.loads(path.read_text(encoding="utf-8"))))
    except OSError as error:
        raise PolicyError(f"policy {path}: {error.strerror}") from None
    except PolicyError as error:
        raise PolicyError(f"policy {path}: {error}") from None
    except ValueError as error:
        raise PolicyError(f"policy {path} is not TOML: {error}") from None


def policy_of(flat: Mapping[str, Any]) -> Policy:
    """The policy of dotted keys; those not given have their defaults, which are strict.

    Raises
    ------
    PolicyError
        A key is unknown or its value wrong.
    """
    given: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for dotted, value in flat.items():
        table, name, annotation = locate(dotted)
        try:
            given[table][name] = schema.convert(value, annotation)
        except ValueError as error:
            raise PolicyError(f"{dotted} = {schema.written(value)}: {error}") from None
    parts = {table: TABLES[table](**given[table]) for table in TABLES if table}
    policy = Policy(**given[""], **parts)
    policy.check()
    return policy


def locate(dotted: str) -> tuple[str, str, Any]:
    """(table, field name, annotation) of a key of policy.toml.

    Raises
    ------
    PolicyError
        There is no such key; names the nearest.
    """
    table, _, key = dotted.rpartition(".")
    if table in TABLES and key in schema.keys(TABLES[table]):
        return table, *schema.keys(TABLES[table])[key]
    raise PolicyError(f'unknown key "{dotted}"{nearest(dotted, Policy().flat())}')


def is_own(dataset: str) -> bool:
    """Whether only the institution has that data set: then its examples are protected."""
    return dataset_of(dataset).deployed is not None


def check_run(policy: Policy, config: Config) -> None:
    """Refuse a run that the policy does not allow; reads no data.

    Raises
    ------
    PolicyError
        Names the first key that is violated.
    """
    data, own = policy.data, config.dataset_options
    _listed("methods", policy.methods, "method", [config.method])
    _listed("data.sets", data.sets, "dataset", [config.dataset])
    _most("most-peers", policy.most_peers, "peers", config.peers)
    _most("most-rounds", policy.most_rounds, "num-server-rounds", config.num_server_rounds)
    if not is_own(config.dataset):
        return
    for key, value in config.flat().items():
        if key.endswith("batch-size") and isinstance(value, int) and value < data.least_batch_size:
            raise PolicyError(
                f"data.least-batch-size = {data.least_batch_size} does not allow {key} = {value}: "
                "the run must take a larger one"
            )
    for key in ("columns", "label"):
        if hasattr(own, key):
            allowed, wanted = getattr(data, key), getattr(own, key)
            where = f"{config.dataset}.{key}"
            _listed(f"data.{key}", allowed, where, words(wanted) if key == "columns" else [wanted])
    for key in ("classes", "mean", "std"):
        if not hasattr(own, key):
            continue
        allowed, wanted = getattr(data, key), getattr(own, key)
        if words(wanted) != words(allowed) and (key, allowed) != ("classes", ANY):
            raise PolicyError(
                f'data.{key} = "{allowed}" does not allow {config.dataset}.{key} = "{wanted}": '
                "the institution's own file decides"
            )


def check_counts(policy: Policy, sizes: Mapping[str, int]) -> None:
    """Refuse own data of which there are too few; a part that is not used may be empty.

    Parameters
    ----------
    sizes : part -> number of examples.

    Raises
    ------
    DataError
        As of any data that do not fit: how many there are is not to be found out by asking.
    """
    least = policy.data.least_examples
    for part, size in sizes.items():
        if size < least and (size or part != "validation"):
            raise DataError(
                f"data.least-examples = {least} does not allow {size} examples in the {part} part"
            )


def _listed(key: str, allowed: str, where: str, wanted: list[str]) -> None:
    for name in wanted:
        if allowed != ANY and name not in words(allowed):
            raise PolicyError(
                f'{key} = "{allowed}" does not allow {where} = "{name}": add it there if it may run'
            )


def _most(key: str, most: int, where: str, wanted: int) -> None:
    if wanted > most:
        raise PolicyError(
            f"{key} = {most} does not allow {where} = {wanted}: raise it there if it may run"
        )


def _documentation(table: type) -> tuple[str, dict[str, str]]:
    """What a table's docstring says of it, and of each key."""
    about, _, attributes = inspect.cleandoc(table.__doc__ or "").partition("\n\nAttributes\n")
    entries = re.split(r"^(\S+) : ", attributes.partition("\n")[2], flags=re.MULTILINE)[1:]
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return " ".join(about.split()), {key: " ".join(text.split()) for key, text in pairs}


def _comment(text: str) -> str:
    return textwrap.fill(text, 96, initial_indent="# ", subsequent_indent="# ") + "\n"
