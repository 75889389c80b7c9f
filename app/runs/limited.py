"""Examples on which models of other peers were limited, from the model cards on this machine."""

from __future__ import annotations

from coterie.app.runs import files
from coterie.app.runs.diagnostics import MAX_PEERS
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Run
from coterie.app.runs.units import plural

_SHOWN = 5
_METHODS = ("mixture", "selection", "stacking", "boosting")


def sentences(run: Run) -> list[str]:
    """Return a sentence per author and peer whose predicted classes it would have decided alone.

    If there is none, one sentence on limited scores, if any. ResultsError: a card is damaged.
    """
    if run.config.get("method") not in _METHODS:
        return []
    decided, limited = list[tuple[int, str]](), 0
    for peer in range(min(run.peers, MAX_PEERS)):
        name = f"models/peer-{peer:04d}.json"
        content = files.json_of(run.directory, name, dict) or {}
        try:
            tests = content.get("examples", {}).get("test", 0)
            for each in content.get("limited", ()):
                alone = int(each["decided"])
                limited += int(each["rows"])
                if alone:
                    text = (
                        f"{each['name']} would have decided {alone:,} of the {tests:,} test "
                        f"examples of {run.names[peer]} alone: its scores were limited to the "
                        "range that chose its weight."
                    )
                    decided.append((alone, text))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{run.directory / name}: no limits: {error}") from None
    if not decided and limited:
        return [
            f"Scores of other peers were limited in {plural(limited, 'prediction')} to the range "
            "that chose their weights; no predicted class depends on it."
        ]
    decided.sort(key=lambda each: -each[0])
    more = len(decided) - _SHOWN
    shown = [text for _, text in decided[:_SHOWN]]
    return shown + [f"So in {more:,} further cases: see models/*.md."] * (more > 0)
