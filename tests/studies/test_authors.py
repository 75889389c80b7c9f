"""The comparison with the authors' code, on stand-ins for it that are written here."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
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


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with one commit, which the comparison of FedEM names."""
    clone = tmp_path / "omarfoq" / "FedEM"
    clone.mkdir(parents=True)
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    commit = authors.Code(clone).commit
    assert len(commit) == 40
    of = [replace(each, commit=commit[:7]) for each in authors.COMPARISONS]
    monkeypatch.setattr(authors, "COMPARISONS", of)
    return clone


def fedem(clone: Path, axis: int) -> authors.Outcome:
    """Compare FedEM with a stand-in that normalises over components (0) or examples."""
    (clone / "client.py").write_text(STAND_IN.format(axis=f"{axis}, keepdim=True"))
    (outcome,) = authors.compare(clone.parents[1], ["fedem"])
    return outcome


def test_a_comparison_tells_equal_code_from_other_code(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedem(clone, axis=0).gaps["mixture weights"] < 1e-14
    arguments = [str(clone.parents[1]), "fedem"]
    assert authors.main(arguments) == 0
    assert "1 of 1 comparisons agree" in capsys.readouterr().out
    other = fedem(clone, axis=1)
    assert other.gaps["mixture weights"] > 0.01
    assert other.faults[0].startswith("mixture weights differs by")
    assert authors.main(arguments) == 1
    assert "FAULT: mixture weights differs by" in capsys.readouterr().out


def test_another_commit_is_a_fault(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = authors.Code(clone).commit[:7]
    of = [replace(each, commit="0000000") for each in authors.COMPARISONS]
    monkeypatch.setattr(authors, "COMPARISONS", of)
    assert fedem(clone, axis=0).faults == (f"the clone has {commit}, not 0000000",)
    shutil.rmtree(clone / ".git")
    assert fedem(clone, axis=0).faults == ("the clone has no commit, not 0000000",)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    clone = tmp_path / "omarfoq" / "FedEM"

    def fault() -> str:
        (outcome,) = authors.compare(tmp_path, ["fedem"])
        return outcome.faults[0]

    assert fault() == f"not compared: no clone at {clone}"
    clone.mkdir(parents=True)
    assert fault() == f"not compared: no file {clone / 'client.py'}"
    (clone / "client.py").write_text("x = 1")
    assert fault() == f"not compared: {clone / 'client.py'} does not define MixtureClient"
    assert authors.main([str(tmp_path), "fedem"]) == 1


@pytest.mark.parametrize("each", authors.COMPARISONS, ids=lambda each: each.method)
def test_pages_name_repository_and_commit(each: authors.Comparison) -> None:
    methods = ROOT / "docs" / "methods"
    checked = (methods / "checked.md").read_text("utf-8")
    assert re.search(rf"\({each.method}\.md[^|]*\| {each.repository}@{each.commit}", checked)
    own = (methods / f"{each.method}.md").read_text("utf-8").partition("## Authors' code")[2]
    assert each.repository in own
    assert f"@{each.commit}" in own
