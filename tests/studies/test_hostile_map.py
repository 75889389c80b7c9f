"""The hostile table as Markdown and as numbers for the heat maps."""

from __future__ import annotations

import numpy as np

from studies import hostile_map

ROW = {
    "setting": "clusters", "method": "dpfl", "attack": "scale", "undefended": "0.5",
    "defended": "0.75", "halfway": "0.1", "to_attackers": "0.0",
}  # fmt: skip


def test_a_cell_says_both_accuracies_and_what_attackers_get() -> None:
    local = ROW | {"method": "local", "halfway": "", "to_attackers": ""}
    lines = hostile_map.markdown([ROW, local, ROW | {"method": "wga"}]).splitlines()
    row = {line.split(" | ")[0]: line for line in lines[:15]}
    assert "| 50.0 → 75.0 (0.10, 0.00) |" in row["| dpfl"]
    assert "| 50.0 → 75.0 |" in row["| wga"]
    assert "| 50.0 |" in row["| local"]


def test_what_was_not_measured_is_no_number() -> None:
    maps = hostile_map.accuracies([ROW])
    assert np.nansum(maps["clusters", "undefended"]) == 50
    assert np.nansum(maps["clusters", "defended"]) == 75
    assert np.isnan(maps["dirichlet", "defended"]).all()
