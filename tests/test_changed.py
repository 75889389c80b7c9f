"""`make check` runs the tests that a change can break first."""

from __future__ import annotations

import pytest

from tests.changed import ALWAYS, select


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("clients/methods/cobo.py", {"tests/clients/methods/test_cobo.py"}),
        (
            "app/wire/payload.py",
            {"tests/app/wire/test_quantise.py"},
        ),
        ("coterie/__init__.py", {"tests/coterie/test_api.py"}),
        ("tests/clients/methods/test_cobo.py", {"tests/clients/methods/test_cobo.py"}),
        ("docker/compose.yaml", {"tests/docs/test_image.py"}),
        ("app/report/static/page.js", {"tests/app/report"}),
        ("app/of_another_branch.py", set()),
        ("LICENSE", set()),
    ],
)
def test_a_change_selects_its_tests(path: str, tests: set[str]) -> None:
    assert select([path]) >= tests | ALWAYS


def test_a_change_that_nothing_uses_selects_the_rules_alone() -> None:
    assert select(["app/of_another_branch.py", "LICENSE"]) == ALWAYS


def test_a_helper_selects_the_tests_that_reach_it_through_helpers() -> None:
    assert "tests/packaging/test_wheel.py" in select(["tests/checkout.py"])
    assert "tests/test_changed.py" in select(["tests/changed.py"])
