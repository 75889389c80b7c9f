"""The comparison with the authors' code, on stand-ins for it that are written here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from studies import authors

ROOT = Path(__file__).parents[2]
STAND_IN = """
raise SystemExit("the rest of the file is not executed")

class MixtureClient(Client):
    def update_sample_weights(self):
        losses_kn = self.learners_ensemble.gather_losses(self.val_iterator)
        joint_kn = self.learners_ensemble.learners_weights[:, None] * torch.exp(-losses_kn)
        self.q_kn = joint_kn / joint_kn.sum({axis})

    def update_learners_weights(self):
        self.learners_ensemble.learners_weights = self.q_kn.mean(1)
"""


def fedem(folder: Path, axis: int) -> float:
    """Return the gap of FedEM from a stand-in that normalises over components (0) or examples."""
    clone = folder / "omarfoq" / "FedEM"
    clone.mkdir(parents=True, exist_ok=True)
    (clone / "client.py").write_text(STAND_IN.format(axis=f"{axis}, keepdim=True"))
    ((_, gaps),) = authors.compare(folder, ["fedem"])
    assert not isinstance(gaps, str)
    return gaps["mixture weights"]


def test_a_comparison_tells_equal_code_from_other_code(tmp_path: Path) -> None:
    assert fedem(tmp_path, axis=0) < 1e-14
    assert fedem(tmp_path, axis=1) > 0.01


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    clone = tmp_path / "omarfoq" / "FedEM"
    ((_, why),) = authors.compare(tmp_path, ["fedem"])
    assert why == f"no clone at {clone}"
    clone.mkdir(parents=True)
    ((_, why),) = authors.compare(tmp_path, ["fedem"])
    assert why == f"no file {clone / 'client.py'}"
    (clone / "client.py").write_text("x = 1")
    ((_, why),) = authors.compare(tmp_path, ["fedem"])
    assert why == f"{clone / 'client.py'} does not define MixtureClient"


@pytest.mark.parametrize("each", authors.COMPARISONS, ids=lambda each: each.method)
def test_pages_name_repository_and_commit(each: authors.Comparison) -> None:
    methods = ROOT / "docs" / "methods"
    checked = (methods / "checked.md").read_text("utf-8")
    assert re.search(rf"\({each.method}\.md[^|]*\| {each.repository}@{each.commit}", checked)
    own = (methods / f"{each.method}.md").read_text("utf-8").partition("## Authors' code")[2]
    assert each.repository in own
    assert f"@{each.commit}" in own
