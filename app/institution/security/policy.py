"""Policy of an institution: the runs that may start on this machine, from its `policy.toml`.

A node without a policy takes part in no run. Docstrings of tables and texts of options become the
comments of the file.
"""

from __future__ import annotations

import inspect
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

from coterie.app.config import schema
from coterie.app.config.keys import flatten, nearest
from coterie.app.config.registry import METHODS
from coterie.app.config.schema import Scalar
from coterie.app.institution.security.files import writable_by_others
from coterie.clients.models.options import MODELS
from coterie.datasets import plugins
from coterie.datasets.own.institutions import words
from coterie.datasets.table import DATASETS
from coterie.errors import Error
from coterie.ranges import Option, option, options_of

Disclosure = Literal["all", "loss", "none"]
ANY = "any"


class PolicyError(Error, ValueError):
    """A run is outside the policy, or the policy file is wrong; names the key and the remedy."""


@dataclass(frozen=True)
class DataPolicy:
    """Data that a run may use. All keys but `sets` are about data that only the institution has
    (`table`, `image-folder`, `text`, `arrays`), not about published or synthetic data sets.
    """  # noqa: D205

    sets: str = option(ANY, 'Names of the data sets that a run may use, as in "table, digits".')
    columns: str = option(ANY, "Columns of the table that a run may learn from.")
    group: str = option(ANY, "Column of patients that a run on a table must have as `table.group`.")
    label: str = option(ANY, "Columns that a run may predict; of survival, time and event.")
    classes: str = option(
        ANY, 'Values of the label, in the order of the model\'s outputs; "": a number is predicted.'
    )
    mean: str = option(
        "",
        "Mean of each channel of images, if all institutions have agreed on it; a run with "
        'another one is refused. "": the run has none. Tables have theirs in schema.toml.',
    )
    std: str = option("", "Standard deviation of each channel of images; see mean.")
    share_statistics: Literal["ask", "yes", "no"] = option(
        "ask",
        "Whether count, mean and variance of each number column, over the training examples and "
        "rounded to standard errors, go to the institutions in the trust file, if a run "
        'puts all tables on a common scale. "ask": if a person approves the run, that is with '
        'approval = "digest". "no": all institutions take mean and scale of schema.toml, or the '
        "run is refused. Values far from all others do not count. Never sent: a column with fewer "
        "than min-examples values, where those equal to the most common one count once, and "
        "anything of a run with differential privacy or without sealing.",
    )
    min_examples: int = option(
        20,
        "Minimum number of examples in the training, test and validation part, and in each class "
        "of the test part before a measure by class is reported; of patients, with `table.group`.",
        low=1,
    )
    max_held_out: float = option(
        0.5,
        "Maximum share of the examples that a run may draw for the test and validation part. With "
        "more of them, fewer reported numbers determine their labels.",
        above=0,
        high=1,
    )
    min_batch_size: int = option(
        8,
        "Minimum batch size; the last batch of an epoch may be smaller. answers.min-examples is "
        "the minimum where letters are sent.",
        low=1,
    )


@dataclass(frozen=True)
class ReportPolicy:
    """Numbers about models that the relay receives. Every number about own data is rounded to the
    precision that the number of examples supports.
    """  # noqa: D205

    disclosure: Disclosure = option(
        "all", '"all", "loss" (no accuracies) or "none" (neither metrics nor weights).'
    )
    training: bool = option(False, "Report metrics of the training examples too.")
    max_numbers_per_example: float = option(
        1.0,
        "Maximum number of reported numbers about own data in all runs together, per example of "
        "the run's data; after that nothing but traffic is reported. Many numbers over the same "
        "examples determine single labels, however they are rounded: with about one number per "
        "example this fails, with many it works.",
        above=0,
    )


@dataclass(frozen=True)
class AnswerPolicy:
    """Answers: results that this node computes on its own data from a received model. These are
    gradients that a method requests, and also its own model after training from an average with
    the models of others.
    """  # noqa: D205

    kind: Literal["private", "plain"] = option(
        "private",
        '"private": a run on own data whose method sends letters needs differential privacy '
        'within max-epsilon and max-delta of [privacy]. "plain": it may do without. Then EVERY '
        "PEER IN THE TRUST FILE CAN READ SINGLE EXAMPLES, such as rows of a table, out of ONE "
        "letter of this node, by sending a model made for the purpose; rounding and larger "
        "batches do not prevent it.",
    )
    min_examples: int = option(
        32,
        "Minimum number of examples behind an answer on own data: in the training part and in each "
        "leaf of a tree (of patients, with `table.group`), and as batch size.",
        low=1,
    )
    threshold_step: float = option(
        0.05,
        "Minimum step of the thresholds of trees, in standard deviations; 0: patients' values.",
        low=0,
        high=1,
    )
    max_answers_per_round: int = option(32, "Maximum number of gradients in one round.", low=1)
    max_answers_per_peer: int = option(
        500, "Maximum number of gradients that one peer may get in one run.", low=1
    )
    max_answers: int = option(
        10_000,
        "Maximum number of gradients in all runs, as the ledger in the node's out counts them.",
        low=1,
    )
    max_replays: int = option(
        3, "Maximum number of times that a round which is not committed may be played again.", low=0
    )


@dataclass(frozen=True)
class PrivacyPolicy:
    """Differential privacy of single examples, on any data; see docs/privacy.md."""

    kind: Literal["none", "examples"] = option(
        "none",
        '"examples": only a run with privacy.kind = "examples" and a privacy.budget may start. '
        '"none": a run may do without.',
    )
    max_epsilon: float = option(
        8.0,
        "Maximum privacy.budget of such a run. What all runs with privacy have spent on this "
        "node's examples counts towards it.",
        above=0,
    )
    max_delta: float = option(
        1e-5,
        "Maximum privacy.delta of such a run; well below one over the examples here.",
        above=0,
        below=1,
    )


@dataclass(frozen=True)
class ClearancePolicy:
    """Attacks of this node on its own letters before they leave: docs/consortium/clearance.md."""

    action: Literal["none", "warn", "ask", "hold"] = option(
        "none",
        "What happens to a letter above max-auc, max-tpr or below answers.min-examples: a warning, "
        'a person is asked (coterie approve --letters), or it is held. "none": no attacks.',
    )
    every: int = option(
        10, "Rounds between two measurements; the first and last are always measured.", low=1
    )
    min_held_out: int = option(
        20, "Minimum number of held-out examples (patients); with fewer a person is asked.", low=2
    )
    max_auc: float = option(
        0.6, "Maximum lower end of the AUC of attacks on membership; 0.5: a coin.", low=0.5, high=1
    )
    max_tpr: float = option(
        0.1, "Maximum lower end of their true positives at 1 % false ones.", above=0, high=1
    )


@dataclass(frozen=True)
class LimitPolicy:
    """Memory and time that a run may take here, checked before anything of that size is made."""

    max_steps: int = option(10_000, "Maximum number of local steps of a round.", low=1)
    max_epochs: int = option(100, "Maximum number of passes over the data in a round.", low=1)
    max_batch_size: int = option(4096, "Maximum number of examples of a gradient.", low=1)
    max_pixels: int = option(
        1_000_000, "Maximum numbers of a resized image: channels times height times width.", low=1
    )
    max_context: int = option(4096, "Maximum number of tokens of an example of a text.", low=1)
    max_layers: int = option(
        100, "Maximum number of layers of a network whose depth the run chooses.", low=1
    )
    max_parameters: int = option(
        250_000_000, "Maximum number of parameters of all models together that a peer keeps.", low=1
    )
    max_bytes: int = option(
        4_000_000_000, "Maximum bytes of the letters that may come in a round.", low=1
    )


@dataclass(frozen=True)
class Policy:
    """Limits of runs on this machine; no run can change them."""

    approval: Literal["digest", "none"] = option(
        "digest",
        '"digest": a person here approves each run by its configuration (coterie approve). '
        '"none": every run within this file may start; then methods, data.sets and, of a table, '
        "data.columns and data.label must name what is allowed.",
    )
    sealing: bool = option(True, "Whether a run's letters must be sealed.")
    methods: str = option(ANY, "Names of the methods that may run.")
    models: str = option(ANY, 'Names of the models that may be trained, as in "linear, mlp".')
    max_peers: int = option(
        100, "Maximum number of peers; letters go to those in the trust file only.", low=1
    )
    max_rounds: int = option(500, "Maximum number of rounds.", low=1)
    data: DataPolicy = field(default_factory=DataPolicy)
    reports: ReportPolicy = field(default_factory=ReportPolicy)
    answers: AnswerPolicy = field(default_factory=AnswerPolicy)
    privacy: PrivacyPolicy = field(default_factory=PrivacyPolicy)
    clearance: ClearancePolicy = field(default_factory=ClearancePolicy)
    limits: LimitPolicy = field(default_factory=LimitPolicy)

    def check(self) -> None:
        """Reject unknown names and, without approval, keys that allow anything."""
        for key, text, known in (
            ("methods", self.methods, {*METHODS, *plugins.installed("method")}),
            ("models", self.models, {*MODELS, *plugins.installed("model")}),
            ("data.sets", self.data.sets, {*DATASETS, *plugins.installed("dataset")}),
        ):
            for name in words(text) if text != ANY else ():
                if name not in known and ":" not in name:
                    raise PolicyError(f'{key}: there is no "{name}"{nearest(name, known)}')
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

    @property
    def shares_statistics(self) -> bool:
        """True if statistics of columns may leave in a run that may start here."""
        return self.data.share_statistics == "yes" or (
            self.data.share_statistics == "ask" and self.approval == "digest"
        )

    def flat(self) -> dict[str, Scalar]:
        """Return dotted key -> value."""
        return {
            f"{table}.{key}" if table else key: value
            for table in TABLES
            for key, value in schema.values(getattr(self, table) if table else self).items()
        }

    def toml(self) -> str:
        """Return the TOML text, with a comment per key."""
        blocks = []
        for table, kind in TABLES.items():
            part = getattr(self, table) if table else self
            lines = [f"[{table}]\n" * bool(table) + _comment(inspect.cleandoc(kind.__doc__ or ""))]
            for key, each in options_of(kind).items():
                value = schema.written(getattr(part, each.name))
                lines.append(_comment(each.text) + f"{key} = {value}\n")
            blocks.append("\n".join(lines))
        return "\n".join(blocks)


TABLES: Mapping[str, type] = {"": Policy} | {
    name: type(part) for name, part in vars(Policy()).items() if is_dataclass(part)
}
"""Table of policy.toml -> its dataclass."""

RENAMED: Mapping[str, str] = {
    "most-peers": "max-peers",
    "most-rounds": "max-rounds",
    "data.least-examples": "data.min-examples",
    "data.least-batch-size": "data.min-batch-size",
    "answers.most-a-round": "answers.max-answers-per-round",
    "answers.most-a-recipient": "answers.max-answers-per-peer",
    "answers.most-in-all": "answers.max-answers",
    "answers.most-repeats": "answers.max-replays",
    "privacy.most-epsilon": "privacy.max-epsilon",
    "privacy.most-delta": "privacy.max-delta",
}
"""Keys of earlier versions -> their names now."""


def read_policy(path: Path, content: bytes | None = None) -> Policy:
    """Read a policy file; PolicyError: missing, wrong, or others may write to it."""
    try:
        if how := writable_by_others(path):
            raise PolicyError(how)
        text = (path.read_bytes() if content is None else content).decode("utf-8-sig")
        return policy_of(flatten(tomllib.loads(text.replace("\r\n", "\n"))))
    except OSError as error:
        raise PolicyError(f"policy {path}: {error.strerror}") from None
    except PolicyError as error:
        raise PolicyError(f"policy {path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"policy {path} is not TOML: {error}") from None


def policy_of(flat: Mapping[str, Any]) -> Policy:
    """Return the policy of dotted keys; a missing key has its default, which is strict."""
    values: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for dotted, value in flat.items():
        table, each = locate(dotted)
        try:
            values[table][each.name] = each.take(value)
        except ValueError as error:
            raise PolicyError(f"{dotted} = {schema.written(value)}: {error}") from None
    parts = {table: TABLES[table](**values[table]) for table in TABLES if table}
    policy = Policy(**values[""], **parts)
    policy.check()
    return policy


def locate(dotted: str) -> tuple[str, Option]:
    """Return table and option of a key of policy.toml; PolicyError names the nearest key."""
    table, _, key = dotted.rpartition(".")
    if table in TABLES and key in options_of(TABLES[table]):
        return table, options_of(TABLES[table])[key]
    if dotted in RENAMED:
        raise PolicyError(f'unknown key "{dotted}": it is called "{RENAMED[dotted]}" now')
    raise PolicyError(f"unknown key {schema.brief(dotted)}{nearest(dotted, Policy().flat())}")


def _comment(text: str) -> str:
    text = " ".join(text.split())
    return textwrap.fill(text, 96, initial_indent="# ", subsequent_indent="# ") + "\n"
