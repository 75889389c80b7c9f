"""`coterie plugin`: write a package with a method of one's own, ready to run, test and install."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rich.console import Console

from coterie.app.config.keys import ConfigError

_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["coterie>=0.2"]

# After `pip install --no-build-isolation --editable .`, method = "{name}".
[project.entry-points."coterie.methods"]
{name} = "{package}.method:Mine"
"""

_METHOD = '''\
"""A method: each peer averages with the peers whose models are closest.

After local training: x_i <- mean of x_i and the k models closest to it (Euclidean distance).
"""

from dataclasses import replace

import numpy as np

from coterie import Everyone, Inbox, Rule, Weighted, option


class Mine(Rule[Weighted], strategy=Everyone, learns_graph=True, summary="averages with nearest"):
    """Local training, then an average over the nearest models."""

    neighbours: int = option(2, "Number of models in the average.", low=1, grid=(1, 2, 4))

    def offer(self, s: Weighted, t: int):
        """Train locally, then offer the model: a row of s.x per hosted peer."""
        s = self.fit(s, t)
        return s, {"x": s.x}

    def update(self, s: Weighted, inbox: Inbox) -> Weighted:
        """Average with the nearest of the models that arrived."""
        apart_pn = np.where(inbox.heard, inbox.squared_distances("x"), np.inf)
        nearest_pk = apart_pn.argsort(axis=1)[:, : self.neighbours]
        w_pn = self.eye()
        np.put_along_axis(w_pn, nearest_pk, 1.0, axis=1)  # the average leaves out absent models
        return replace(s, x=inbox.average("x", w_pn), w=inbox.shares(w_pn))
'''

_TEST = '''\
"""The method on every kind of problem: the same numbers for any division of peers over nodes."""

from coterie.testing import check_method


def test_mine(check_method):
    check_method("{package}.method:Mine")
'''


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write the package into a new or an empty folder."""
    parser.add_argument(
        "directory", type=Path, help="a new or an empty folder, named as the method"
    )
    directory = parser.parse_args(arguments).directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists already: name a new or an empty folder")
    name = directory.resolve().name
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise ConfigError(
            f"{name}: name the folder as the method, in lower case with hyphens: my-method"
        )
    package = name.replace("-", "_")
    files = {
        "pyproject.toml": _PROJECT.format(name=name, package=package),
        f"src/{package}/__init__.py": f'"""Parts of {name} for Coterie."""\n',
        f"src/{package}/method.py": _METHOD,
        "tests/test_method.py": _TEST.replace("{package}", package),
    }
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(content, encoding="utf-8")
    console.print(f"wrote {directory}: change src/{package}/method.py", soft_wrap=True)
    console.print(
        f"cd {directory} && pip install --no-build-isolation --editable .", soft_wrap=True
    )
    console.print(f"coterie compare --methods local,fedavg,{name}", soft_wrap=True)
