"""Tables of the study of bytes."""

from __future__ import annotations

from studies import bytes as study
from studies.bytes import Outcome


def test_a_cell_is_bold_where_the_goal_is_reached() -> None:
    def row(problem: str, change: float, fraction: float) -> Outcome:
        return Outcome(problem, "cobo", "sign", 90.0, change, 0.5, 1.0, fraction)

    rows = [
        row("flipped-labels", -1.0, 0.1),
        row("three-classes", -1.1, 0.1),
        row("label-groups", 2.0, 0.11),
    ]
    *_, cobo = study.tables(rows)["sign"]
    assert cobo == (
        "| cobo | **-1.0 ± 0.5, 10.0 %** | -1.1 ± 0.5, 10.0 % | +2.0 ± 0.5, 11.0 % | – |"
    )


def test_methods_that_send_no_models_are_left_out() -> None:
    assert not {"local", "fedrep", "fedem", "fedproto"} & study.plan().keys()
    assert {*study.ANSWERING, *study.SHOWN} <= study.plan().keys()
