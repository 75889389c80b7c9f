"""Reports at 10, 100 and 1,000 peers: `python -m benchmarks.reports`.

The run is synthetic (20 evaluated rounds, ten recovered clusters); its files are normal run files.
`coterie report` writes its pages in a separate process, and headless chromium opens report.html.
Without chromium, the time to open is omitted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.__main__ import show
from coterie.app.runs.recorder import RunRecorder
from coterie.strategies.protocol import Report
from coterie.strategies.relay.commit import Commit, Ledger

SIZES = (10, 100, 1_000)
ROUNDS, CLUSTERS = 20, 10
_CONFIG = 'method = "cobo"\npeers = {}\nseed = 0\nnum-server-rounds = 20\ndataset = "digits"\n'
_PROBE = """<script>addEventListener("load", () => {
  document.documentElement.dataset.opened = performance.now();
});</script>"""


@dataclass(frozen=True)
class Written:
    """Size of a report, time of `coterie report`, and time until the page is drawn."""

    peers: int
    kilobytes: int
    seconds: float
    cpu_seconds: float
    peak_megabytes: int
    open_ms: int | None


def rows() -> Iterator[Written]:
    """Measure a report of each size."""
    for peers in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch) / "run"
            record(directory, peers)
            yield _row(directory, peers)


def record(directory: Path, peers: int) -> None:
    """Record a synthetic run."""
    rng = np.random.default_rng(0)
    cluster_n = np.arange(peers) % CLUSTERS
    same_nn = cluster_n[:, None] == cluster_n
    recorder = RunRecorder(directory, peers, ROUNDS)
    (directory / "config.toml").write_text(_CONFIG.format(peers), encoding="utf-8")
    split = [{"cluster": int(c), "train": {"size": 60, "labels": [6] * 10}} for c in cluster_n]
    (directory / "split.json").write_text(str(split).replace("'", '"'), encoding="utf-8")
    for t in range(ROUNDS):
        weights_nn = rng.random((peers, peers)) * np.where(same_nn, 1.0, 1 - t / ROUNDS)
        weights_nn /= weights_nn.sum(axis=1, keepdims=True)
        accuracy_n = 0.9 - 0.8 * np.exp(-t / 5) + 0.02 * rng.standard_normal(peers)
        reports = [
            Report(t, peer, _measured(t, accuracy), tuple(weights))
            for peer, (accuracy, weights) in enumerate(
                zip(accuracy_n.tolist(), weights_nn.tolist(), strict=True)
            )
        ]
        recorder.round(Commit(Ledger(round=t, messages=4 * t), tuple(reports)))
    recorder.finish()


def _measured(t: int, accuracy: float) -> dict[str, float | None]:
    quality = {
        f"{part}_{name}": value
        for part in ("test", "validation")
        for name, value in (("accuracy", accuracy), ("loss", 2 - accuracy))
    }
    costs = dict.fromkeys(("bytes_sent", "bytes_received", "gradient_evaluations"), 4_000.0 * t)
    return {**quality, **costs, "train_loss": 1.9 - accuracy}


def _row(directory: Path, peers: int) -> Written:
    start = time.perf_counter()
    command = [sys.executable, "-m", "coterie", "report", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    page = directory / "report.html"
    return Written(
        peers=peers,
        kilobytes=round(page.stat().st_size / 1e3),
        seconds=round(time.perf_counter() - start, 1),
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 1),
        peak_megabytes=usage.ru_maxrss // 1_000,
        open_ms=opened(page),
    )


def opened(page: Path) -> int | None:
    """Return milliseconds from navigation until the page is drawn; None without chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        return None
    probed = page.with_name("probed.html")
    html = page.read_text(encoding="utf-8").replace("</body>", f"{_PROBE}</body>")
    probed.write_text(html, encoding="utf-8")
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", probed.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    match = re.search(r'<html[^>]* data-ready="yes" data-opened="([\d.]+)"', done.stdout)
    assert match is not None, "the page's script did not finish"
    return round(float(match[1]))


if __name__ == "__main__":
    show(Console(), "Reports", rows())
