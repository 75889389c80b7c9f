"""Files of the personal models at the end of a run, each with its card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.app.config.config import Config
from coterie.app.node.cohort.part import predicts_as_saved
from coterie.app.node.storage.tensor_file import write
from coterie.app.runs import atomic
from coterie.app.security.policy import Policy
from coterie.app.trained.about import About
from coterie.app.trained.card import as_json, as_markdown, card
from coterie.clients.rule import Rule
from coterie.datasets.problem import Problem
from coterie.strategies.protocol import Report


class ModelFiles:
    """Files `models/peer-0003.safetensors`, `.json` and `.md` of the peers of a node.

    Parameters
    ----------
    directory : run directory.
    rule : rule of the method.
    policy : of the institution, which the card states; None in a simulation.
    durable : synchronise files to the disk.
    """

    def __init__(
        self,
        directory: Path,
        config: Config,
        problem: Problem,
        peers: Sequence[int],
        rule: type[Rule[Any]],
        policy: Policy | None,
        *,
        durable: bool,
    ) -> None:
        self._directory, self._policy, self._durable = directory / "models", policy, durable
        refused = ""
        if not predicts_as_saved(rule):
            refused = f"{config.method} predicts in a way of its own that its rule does not save"
        self._about = {peer: About.of(config, problem, peer, refused) for peer in peers}
        self._sizes = {peer: problem.sizes(peer) for peer in peers}
        self._protection = config.privacy, config.defence

    def write(
        self,
        models: Iterable[tuple[int, Mapping[str, Tensor]]],
        names: Mapping[int, str],
        reports: Mapping[int, Report],
        curves: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """Write each peer's model, and the card of each peer with a report.

        Parameters
        ----------
        models : peer and named tensors.
        names : peer -> its name, as far as known here.
        reports : peer -> report of the last round, before a policy limits it.
        curves : peer -> figure data of its evaluation.
        """
        for peer, tensors in models:
            about = replace(self._about[peer], peer_name=names.get(peer) or f"peer {peer}")
            file = self._directory / f"peer-{peer:04d}.safetensors"
            write(file, tensors, about.strings(), durable=self._durable)
            if peer in reports:
                content = card(
                    about, self._sizes[peer], reports[peer], names, self._policy,
                    curves.get(peer, {}), *self._protection, has_examples="memory.keys" in tensors,
                )  # fmt: skip
                atomic.write(file.with_suffix(".json"), as_json(content))
                atomic.write(file.with_suffix(".md"), as_markdown(content))
