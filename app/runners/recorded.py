"""Configuration of a recorded run, to execute it again; its directory may come from anywhere."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from coterie.app.config import defaults
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.sources import of_record
from coterie.app.runs import files


def config_of(run_dir: Path, named: Collection[str] = ()) -> Config:
    """Return the configuration of a run directory that may be written to.

    `named` is code that the user has named, as "module:attribute", and the directory may name too.
    ConfigError: it is not a run directory, or it names other code; nothing was loaded.
    ResultsError: it has a link, a pipe or a device.
    """
    files.check_all(run_dir)
    if not (run_dir / "config.toml").is_file():
        raise ConfigError(f"{run_dir} is not a run directory: it has no config.toml")
    return Config.of(defaults.of_project(), of_record(run_dir / "config.toml"), named=named)
