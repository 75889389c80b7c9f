"""Files of the personal models, each with its card."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from coterie.app.config.config import Config
from coterie.app.node.cohort.members import predicts_as_saved
from coterie.app.node.storage.tensor_file import write
from coterie.app.runs import atomic, files, quality
from coterie.app.trained import coefficients
from coterie.app.trained.about import About
from coterie.app.trained.card import as_json, as_markdown, card
from coterie.app.trained.decision import operating_point
from coterie.clients.rule import Rule
from coterie.datasets.problem import Problem
from coterie.datasets.quality import ColumnQuality
from coterie.strategies.protocol import Report


class ModelFiles:
    """Files `models/peer-0003.safetensors`, `.json` and `.md` of the peers of a node."""

    # Cards state the keys of the institution's `policy` (None in a simulation) and the `qualities`
    # of the peers' columns. `durable`: flush files to the disk.

    def __init__(
        self,
        directory: Path,
        config: Config,
        problem: Problem,
        peers: Sequence[int],
        rule: type[Rule[Any]],
        policy: Mapping[str, Any] | None,
        qualities: Sequence[ColumnQuality],
        *,
        durable: bool,
    ) -> None:
        self._directory, self._policy, self._durable = directory / "models", policy, durable
        refused = ""
        if not predicts_as_saved(rule):
            refused = f"{config.method} predicts in a way that its rule does not save"
        self._about = {peer: About.of(config, problem, peer, refused) for peer in peers}
        self._qualities = {
            peer: [each for each in qualities if each.peer == peer] for peer in peers
        }
        self._findings = quality.one_class_in(problem)
        for peer, account in enumerate(problem.accounts):
            if account is not None and account.left_out:
                words = self._findings.get(peer), account.line
                self._findings[peer] = "; ".join(filter(None, words))
        self._sizes = {peer: problem.sizes(peer) for peer in peers}
        grouped = peers if problem.groups is not None else ()
        self._groups = {peer: problem.sizes(peer, in_groups=True) for peer in grouped}
        self._protection = config.privacy, config.defence
        self._model_of = config.model_of_peer if len(config.kinds) > 1 else None
        self._rounds, self.keeps_best = config.num_server_rounds, config.keep_models == "best"

    def write(
        self,
        t: int,
        models: Iterable[tuple[int, Mapping[str, Tensor]]],
        names: Mapping[int, str],
        reports: Sequence[Report],
        curves: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """Write the models of round `t` that are kept, and the card of each peer with a report."""
        # `reports` are those of the round before a policy limits them.
        by_peer = {report.peer: report for report in reports}
        effects = dict[int, tuple[About, coefficients.Arrays]]()
        for peer, tensors in models:
            report = by_peer.get(peer)
            about = replace(self._about[peer], peer_name=names.get(peer) or f"peer {peer}")
            file = self._directory / f"peer-{peer:04d}.safetensors"
            metadata = about.strings() | operating_point(curves.get(peer, {}))
            if "mixture.authors" in tensors:
                authors = tensors["mixture.authors"].tolist()
                named = [names.get(author) or f"peer {author}" for author in authors]
                metadata["authors"] = json.dumps(named)
            if self.keeps_best:
                if not self._is_better(t, report, peer, file):
                    continue
                loss = None if report is None else report.metrics["validation_loss"]
                metadata["validation_loss"] = json.dumps(loss)
            write(file, tensors, metadata, durable=self._durable)
            if "effects.estimates" in tensors:
                arrays = {name: value.double().cpu().numpy() for name, value in tensors.items()}
                effects[peer] = About.read(about.strings()), arrays
            if report is not None:
                content = card(
                    about, self._sizes[peer], report, names, self._policy,
                    curves.get(peer, {}), *self._protection, self._qualities[peer],
                    self._findings.get(peer, ""), self._groups.get(peer),
                    has_examples="memory.keys" in tensors, model_of=self._model_of,
                    clearance=files.json_of(
                        self._directory.parent, files.CLEARANCE, Mapping[str, Any]
                    ),
                )  # fmt: skip
                if t < self._rounds:
                    content["rounds"] = self._rounds
                atomic.write(file.with_suffix(".json"), as_json(content))
                atomic.write(file.with_suffix(".md"), as_markdown(content))
        if effects:
            table = coefficients.table(effects, names)
            atomic.write(self._directory.parent / coefficients.FILE, table)

    def _is_better(self, t: int, report: Report | None, peer: int, file: Path) -> bool:
        """Return whether a model of round `t` is kept: better on validation data, or newer."""
        if not file.exists():
            return report is not None or t == self._rounds
        if report is None or not self._sizes[peer]["validation"]:
            return report is not None
        with safe_open(file, "pt") as kept:
            best = json.loads(kept.metadata().get("validation_loss", "null"))
        loss = report.metrics["validation_loss"]
        return loss is not None and (best is None or loss < best)
