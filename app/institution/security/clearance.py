"""Gate of outgoing letters, as [clearance] of the policy says, and the signed sheet of a run.

`clearance.json` in the node's run directory has what left, what was held, and what was measured of
each letter (`coterie.app.node.cohort.clearance`); `clearance.md` is the same on one screen. The
measurement of a letter and the sheet stay on the node: a held letter is simply missing elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.institution.security import approval
from coterie.app.institution.security.approval import ApprovalError
from coterie.app.institution.security.keys import PrivateKeys, PublicKeys
from coterie.app.institution.security.policy import Policy, PolicyError
from coterie.app.institution.security.seal import framed
from coterie.app.institution.security.trust import KeysError
from coterie.app.runs import atomic, files
from coterie.app.runs.units import plural
from coterie.clients import leakage
from coterie.strategies.protocol import PeerMessage

_PAGE = "clearance.md"
_PROTOCOL = "coterie clearance 1"
STOPPED = HELD, WAITS = "held", "waits for approval"
"""Verdicts on letters that did not leave."""
_SHOWN = 12
"""Maximum number of letters on the page."""
TEXT = """# Clearance: what left in the run {run}

{institution}, peer {peer}: {method}, {model} on {data}. Run approved by {run_approved_by}; letters
approved by {letters_approved_by}. Differential privacy: {privacy}. Limits: {limits}.
Letters: {counts}. Measuring took {seconds:g} s. Configuration {config_digest}; {signed}.

{table}

AUC: who has the letter and a person's data guesses whether the person is a training patient; 0.5 is
a coin, 1 is certain. Found at 1 %: training patients found while 1 % of the others are taken for
some. Both of the stronger of two attacks, with 95 % intervals, measured against held-out patients.
Fewest: patients behind a number, or behind what changed since an earlier letter. Readable: patients
whose row can be read off the letter. A dash: no such attack on such a letter.

What this does not show:

- The sender tried two attacks on membership; others, with more knowledge, may find more.
- Each letter was measured alone: letters of several rounds or runs may tell more together. Letters
  between two measurements were not attacked at all.
- A held letter tells its readers that a limit was passed: neither limits nor epsilon cover this.
- Readers may share what they received, and know more of a person than the columns of the run.
- Held-out patients stand for all others: if they differ from the training patients in time or kind,
  an attack finds that difference too.
"""
_HEAD = "round | letter | to | AUC | found at 1 % | held out | fewest | readable | verdict"
_log = logging.getLogger("coterie.clearance")


def digest_for_letters(config_digest: str, run: str) -> str:
    """Return the digest by which a person approves letters of one run that wait."""
    return hashlib.sha256(framed(_PROTOCOL, config_digest, run)).hexdigest()


class Gate:
    """Decides which letters of a peer leave in a run, and writes the sheet."""

    def __init__(self, policy: Policy, config: Config, directory: Path, peer: int) -> None:
        self._policy, self._directory = policy, directory
        digest = config_digest_of(config).hex()
        self._approval = digest_for_letters(digest, directory.name)
        limits = {
            key.partition(".")[2]: value
            for key, value in policy.flat().items()
            if key.startswith("clearance.") or key == "answers.min-examples"
        }
        before = read(directory) or {}
        if before and before["config_digest"] != digest:  # letters of it left, too
            kept = directory / files.CLEARANCE
            kept.replace(kept.with_stem(f"{kept.stem}-{before['config_digest'][:16]}"))
            before = {}
        self._sheet: dict[str, Any] = {
            "run": directory.name,
            "peer": peer,
            "method": config.label,
            "model": config.network,
            "data": config.dataset,
            "config_digest": digest,
            "run_approved_by": approval.approver(directory.parent, directory.name, digest),
            "letters_approved_by": [],
            "letters": [],
            "not_measured": {},
            "seconds": 0.0,
            **before,
            "limits": limits,
            "does_not_show": TEXT.partition("not show:")[2].split("\n- ")[1:],
        }
        # Kind and readers -> round of the last measured letter, if that left.
        self._measured = dict[tuple[str, ...], int]()
        for each in self._sheet["letters"]:
            self._note(each)

    def passes(
        self,
        letter: PeerMessage,
        to: Sequence[str],
        measure: Callable[[], Mapping[str, Any]],
        *,
        is_last: bool,
    ) -> bool:
        """Return whether a letter to some readers leaves; `measure` attacks it, if it is due.

        Answers are always due: their reader chose the model that they are about.
        """
        since = letter.round - self._measured.get((letter.kind, *to), -math.inf)
        is_between = 0 < since < self._policy.clearance.every and not is_last
        if is_between and letter.kind != "answer":
            left = self._sheet["not_measured"]
            left[letter.kind] = left.get(letter.kind, 0) + 1
            return True
        assert isinstance(letter.payload, bytes)
        began, measured = time.monotonic(), measure()
        self._sheet["seconds"] = round(self._sheet["seconds"] + time.monotonic() - began, 3)
        above, unknown = self._above(letter, measured), self._unknown(letter, measured)
        entry = {
            "kind": letter.kind,
            "round": letter.round,
            "to": list(to),
            "digest": hashlib.sha256(letter.payload).hexdigest(),
            "measured": _rounded(measured),
            "reasons": [*above, *unknown],
            "verdict": self._verdict(bool(above), bool(unknown)),
        }
        self._note(entry)
        if not any(entry.items() <= each.items() for each in self._sheet["letters"]):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._sheet["letters"].append({"time": now, **entry})
        if entry["verdict"] != "sent":
            how = f"; coterie approve --letters {self._directory}" * (entry["verdict"] == WAITS)
            line = f"{letter.kind} {entry['verdict']}: {'; '.join(entry['reasons'])}{how}"
            _log.warning("clearance: %s", line, extra={"round": letter.round})
        return entry["verdict"] not in STOPPED

    def _note(self, entry: Mapping[str, Any]) -> None:
        """Remember whether a letter left: if not, the next one is measured too."""
        ends = entry["kind"], *entry["to"]
        if entry["verdict"] in STOPPED:
            self._measured.pop(ends, None)
        else:
            self._measured[ends] = entry["round"]

    def require_sent(self, kind: str) -> None:
        """PolicyError if no letter of a kind that the run cannot do without has left."""
        if not any(ends[0] == kind for ends in self._measured):
            page = self._directory / _PAGE
            raise PolicyError(f"[clearance] stopped the {kind}, which the run needs: see {page}")

    def write(
        self, keys: PrivateKeys | None, name: str, privacy: Mapping[str, float] | None
    ) -> None:
        """Write sheet and page, signed with the keys, if any; `privacy`: epsilon and delta."""
        content = {**self._sheet, "institution": name, "privacy": privacy}
        content.pop("signature", None)
        if keys is not None:
            content["signature"] = base64.b64encode(keys.sign(_signed(content))).decode()
        atomic.write(self._directory / files.CLEARANCE, json.dumps(content, indent=1) + "\n")
        atomic.write(self._directory / _PAGE, page(content))

    def _verdict(self, is_above: bool, is_unknown: bool) -> str:
        action = self._policy.clearance.action
        if is_above and action == "hold":
            return HELD
        if not is_unknown and (not is_above or action == "warn"):
            return "sent with a warning" if is_above else "sent"
        try:
            approval.require_approval(self._directory.parent, self._directory.name, self._approval)
        except ApprovalError:
            return WAITS
        out, run = self._directory.parent, self._directory.name
        self._sheet["letters_approved_by"] = approval.approver(out, run, self._approval)
        return "sent after approval"

    def _above(self, letter: PeerMessage, measured: Mapping[str, Any]) -> list[str]:
        """Return a sentence per limit that a letter is above."""
        limits, least = self._policy.clearance, self._policy.answers.min_examples
        if letter.kind == "statistics":
            least = self._policy.data.min_examples
        result = []
        for name, limit, what in (
            ("auc", limits.max_auc, "membership, AUC"),
            ("tpr", limits.max_tpr, "training patients found at 1 % false alarms"),
        ):
            estimate = leakage.worst(measured, name)
            if estimate and estimate[1] > limit:
                value, low, high = estimate
                result.append(f"{what} {value:.2f} ({low:.2f} to {high:.2f}), limit {limit:g}")
        fewest, readable = measured.get("fewest"), measured.get("readable")
        if fewest is not None and fewest < least:
            result.append(f"a number is about {plural(fewest, 'patient')}, minimum {least}")
        if readable:
            result.append(f"the rows of {plural(readable, 'patient')} can be read off")
        return result

    def _unknown(self, letter: PeerMessage, measured: Mapping[str, Any]) -> list[str]:
        """Return why nothing can be said of a letter; empty if it can."""
        least, held_out = self._policy.clearance.min_held_out, measured.get("held_out", 0)
        if letter.kind == "statistics" or not letter.nbytes or held_out >= least:
            return []
        return [f"{held_out} held-out patients, minimum {least}, to measure membership"]


def read(directory: Path) -> dict[str, Any] | None:
    """Return the sheet of a run; None without. DamagedError: it is not one."""
    path = directory / files.CLEARANCE
    if not path.exists():
        return None
    try:
        sheet: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        page(sheet)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise atomic.DamagedError(f"{path}: damaged; put it back, or remove it") from None
    return sheet


def verify(sheet: Mapping[str, Any], keys: PublicKeys) -> None:
    """Raise KeysError unless the sheet is as the owner of the keys signed it."""
    try:
        signature = base64.b64decode(str(sheet.get("signature", "")), validate=True)
        keys.verifier.verify(signature, _signed(sheet))
    except (ValueError, InvalidSignature):
        raise KeysError(
            "the signature is not valid: the sheet was altered, or is another peer's"
        ) from None


def _signed(sheet: Mapping[str, Any]) -> bytes:
    content = {key: value for key, value in sheet.items() if key != "signature"}
    return framed(_PROTOCOL, json.dumps(content, sort_keys=True))


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def page(sheet: Mapping[str, Any]) -> str:
    """Return the sheet as Markdown, on one screen."""
    letters, privacy = sheet["letters"], sheet.get("privacy")
    counts = Counter(each["verdict"] for each in letters)
    counts["left between two measurements"] = sum(sheet["not_measured"].values())
    first = sorted(letters, key=lambda each: (each["verdict"] == "sent", -each["round"]))
    shown = sorted(first[:_SHOWN], key=lambda each: (each["round"], each["kind"]))
    rows = [_HEAD, " | ".join(["---"] * len(_HEAD.split("|"))), *map(_row, shown)]
    values = {
        "institution": sheet["institution"] or "-",
        "privacy": "epsilon {epsilon:.3g}, delta {delta:g}".format(**privacy)
        if privacy
        else "none",
        "limits": ", ".join(f"{key} {value}" for key, value in sheet["limits"].items()),
        "counts": ", ".join(f"{count} {name}" for name, count in counts.items() if count),
        "config_digest": sheet["config_digest"][:16],
        "signed": "signed in clearance.json" if "signature" in sheet else "not signed: no keys",
        "table": "\n".join(f"| {row} |" for row in rows),
        **{key: ", ".join(sheet[key]) or "nobody" for key in sheet if key.endswith("approved_by")},
    }
    return TEXT.format(**{**sheet, **values})


def _row(letter: Mapping[str, Any]) -> str:
    measured, why = letter["measured"], "; ".join(letter["reasons"])
    cells = [str(letter["round"]), letter["kind"], ", ".join(letter["to"])]
    for name in ("auc", "tpr"):
        of = leakage.worst(measured, name)
        cells.append("{:.2f} ({:.2f} to {:.2f})".format(*of) if of else "-")
    cells += [str(measured.get(key, "-")) for key in ("held_out", "fewest", "readable")]
    return " | ".join([*cells, f"{letter['verdict']}: {why}" if why else letter["verdict"]])
