"""Name and memory of the machine of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coterie.app.runners.machine import description, memory


def test_a_machine_has_a_processor_and_cores() -> None:
    assert " core" in description()
    assert description("NVIDIA H200").endswith(", NVIDIA H200")


@pytest.mark.parametrize(
    ("groups", "limits", "least"),
    [
        ("0::/system.slice/job.service\n", {"system.slice/job.service/memory.max": 2}, 2),
        ("0::/slurm/job_7/step_0\n", {"slurm/job_7/memory.max": 3, "slurm/memory.max": 4}, 3),
        ("0::/job\n", {"job/memory.max": "max", "memory.max": 5}, 5),
        ("5:memory:/job\n4:cpu:/\n", {"memory/job/memory.limit_in_bytes": 6}, 6),
        ("0::/elsewhere\n", {"memory.max": 7}, 7),  # in a container that sees its own tree only
    ],
)
def test_the_least_limit_of_the_cgroups_above_counts(
    groups: str, limits: dict[str, object], least: int, tmp_path: Path
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, limit in limits.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    assert memory(tmp_path) == least


def test_without_limits_there_is_the_machine_s_memory(tmp_path: Path) -> None:
    assert memory(tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
