"""The ServerApp: the relay of a run. It brokers letters and writes down what the peers report.

It never imports torch and never opens a payload.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from app.config.config import Config
from app.runs import logs
from app.runs.recorder import RunRecorder
from strategies.errors import RelayError
from strategies.flower.strategy import RelayStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run or resume what the run configuration says."""
    logs.begin()
    config = Config.from_flat(context.run_config).located(str(context.run_id))
    directory = Path(config.run_dir)
    recorder = RunRecorder(directory, config.peers, config.num_server_rounds, resume=config.resume)
    if not (directory / "config.toml").exists():  # a bare `flwr run`
        (directory / "config.toml").write_text(config.toml(), encoding="utf-8")
    try:
        RelayStrategy(config.strategy()).start(
            grid,
            timeout=config.round_seconds,
            recorder=recorder,
            ledger=recorder.ledger,
            join_timeout=config.join_seconds,
            quorum=config.quorum,
        )
    except BaseException as error:
        named = isinstance(error, RelayError)
        recorder.fail(str(error) if named else f"{type(error).__name__}: {error}")
        raise
    recorder.finish()
