"""An institution's policy: what a run may do on this machine.

`policy.toml` is written and read by the institution (`coterie policy`); nothing that a run or
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

from coterie.app.config import schema
from coterie.app.config.keys import flatten, nearest
from coterie.app.config.registry import METHODS
from coterie.app.config.schema import Scalar
from coterie.datasets import plugins
from coterie.datasets.own.institutions import words
from coterie.datasets.table import DATASETS

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
class PrivacyPolicy:
    """[privacy]: whether a run must protect single examples by differential privacy, on whatever
    data. docs/privacy.md says what that covers.

    Attributes
    ----------
    kind : "examples": only a run with privacy.kind = "examples" and a privacy.budget may start.
        "none": it may do without.
    most-epsilon : largest privacy.budget that such a run may have. What all runs with privacy have
        spent on this node's examples counts towards it.
    most-delta : largest privacy.delta that it may have; well below one over the examples here.
    """  # noqa: D205

    kind: Literal["none", "examples"] = "none"
    most_epsilon: float = 8.0
    most_delta: float = 1e-5


@dataclass(frozen=True)
class LimitPolicy:
    """[limits]: how much memory and time a run may take here. They are checked before anything of
    that size is made.

    Attributes
    ----------
    max-steps : local steps of a round.
    max-epochs : passes over the own data in a round.
    max-batch-size : examples that a gradient is taken over at once.
    max-pixels : numbers that an image is brought to: channels times height times width.
    max-context : tokens of an example of a text.
    max-layers : layers of a network whose depth the run chooses.
    max-parameters : numbers of all models together that a peer keeps.
    max-bytes : bytes of the letters that may come in a round.
    """  # noqa: D205

    max_steps: int = 10_000
    max_epochs: int = 100
    max_batch_size: int = 4096
    max_pixels: int = 1_000_000
    max_context: int = 4096
    max_layers: int = 100
    max_parameters: int = 250_000_000
    max_bytes: int = 4_000_000_000


@dataclass(frozen=True)
class Policy:
    """What a run may do on this machine; nothing that a run says changes it.

    Attributes
    ----------
    approval : "digest": a person here approves each run by its configuration (coterie
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
    privacy: PrivacyPolicy = field(default_factory=PrivacyPolicy)
    limits: LimitPolicy = field(default_factory=LimitPolicy)

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
        if self.privacy.most_epsilon <= 0:
            raise PolicyError("privacy.most-epsilon allows nothing: write a number above 0")
        if not 0 < self.privacy.most_delta < 1:
            raise PolicyError("privacy.most-delta must lie between 0 and 1")
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
        return {
            f"{table}.{key}" if table else key: value
            for table in TABLES
            for key, value in schema.values(getattr(self, table) if table else self).items()
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
    "privacy": PrivacyPolicy,
    "limits": LimitPolicy,
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


def _documentation(table: type) -> tuple[str, dict[str, str]]:
    """What a table's docstring says of it, and of each key."""
    about, _, attributes = inspect.cleandoc(table.__doc__ or "").partition("\n\nAttributes\n")
    entries = re.split(r"^(\S+) : ", attributes.partition("\n")[2], flags=re.MULTILINE)[1:]
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return " ".join(about.split()), {key: " ".join(text.split()) for key, text in pairs}


def _comment(text: str) -> str:
    return textwrap.fill(text, 96, initial_indent="# ", subsequent_indent="# ") + "\n"
