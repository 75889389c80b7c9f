"""Checks of a run, and of the institution's own data, against the institution's policy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.preflight import scale_of
from coterie.app.institution.security.policy import (
    ANY,
    AnswerPolicy,
    LimitPolicy,
    Policy,
    PolicyError,
    PrivacyPolicy,
)
from coterie.clients.privacy import Privacy
from coterie.datasets.own.institutions import words
from coterie.datasets.own.scale import agreed
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.table import dataset_of


def is_own(dataset: str) -> bool:
    """Return whether only the institution has the data set, so that its examples are protected."""
    return dataset_of(dataset).deployed is not None


def check_run(policy: Policy, config: Config) -> None:
    """Refuse a run that the policy does not allow, and one whose peers lie; reads no data."""
    data, options = policy.data, config.dataset_options
    if config.attack.kind != "none":
        raise PolicyError(
            f'no policy allows attack.kind = "{config.attack.kind}": attackers are for simulations'
        )
    _listed("methods", policy.methods, "method", [config.method])
    _listed("models", policy.models, "model", list(config.kinds))
    _listed("data.sets", data.sets, "dataset", [config.dataset])
    _at_most("max-peers", policy.max_peers, "peers", config.peers)
    _at_most("max-rounds", policy.max_rounds, "num-server-rounds", config.num_server_rounds)
    _check_sizes(policy.limits, config)
    _private_enough(policy.privacy, config.privacy)
    if not is_own(config.dataset):
        return
    _batches_of("data.min-batch-size", data.min_batch_size, config)
    key, validation = config.validation
    test = float(getattr(options, "test", 0.0))
    _at_most(
        "data.max-held-out", data.max_held_out, f"test share and {key}, together", test + validation
    )
    if config.row.strategy.exchanges:
        _batches_of("answers.min-examples", policy.answers.min_examples, config)
        _check_described(policy.answers, config)
        _answers_allowed(policy, config)
    for key in ("columns", "label"):
        if hasattr(options, key):
            allowed, wanted = getattr(data, key), getattr(options, key)
            where = f"{config.dataset}.{key}"
            _listed(f"data.{key}", allowed, where, words(wanted) if key == "columns" else [wanted])
    group = getattr(options, "group", data.group)
    if data.group not in (ANY, group):
        raise PolicyError(
            f'data.group = "{data.group}" does not allow {config.dataset}.group = "{group}": the '
            "run must keep the rows of a patient together"
        )
    if event := getattr(options, "event", ""):
        _listed("data.label", data.label, f"{config.dataset}.event", [event])
    if config.dataset == "table" and (data.mean or data.std):
        raise PolicyError(
            "data.mean and data.std are for images: remove them from the policy, and put mean and "
            "scale of the table's columns into schema.toml"
        )
    for key in ("classes", "mean", "std"):
        if not hasattr(options, key):
            continue
        allowed, wanted = getattr(data, key), getattr(options, key)
        if words(wanted) != words(allowed) and (key, allowed) != ("classes", ANY):
            raise PolicyError(
                f'data.{key} = "{allowed}" does not allow {config.dataset}.{key} = "{wanted}": '
                "the institution's file decides"
            )


def _check_sizes(limits: LimitPolicy, config: Config) -> None:
    """Refuse a run whose keys ask for more memory or time than the policy allows."""
    of_keys = {
        "steps": ("max-steps", limits.max_steps),
        "epochs": ("max-epochs", limits.max_epochs),
        "batch-size": ("max-batch-size", limits.max_batch_size),
        "context": ("max-context", limits.max_context),
    }
    for key, value in config.flat().items():
        for last, (most, limit) in of_keys.items():
            if key.endswith(last) and isinstance(value, int):
                _at_most(f"limits.{most}", limit, key, value)
    depth = getattr(config.model_options, "depth", 0)
    _at_most("limits.max-layers", limits.max_layers, f"{config.network}: layers", depth)
    pixels = math.prod(getattr(config.dataset_options, "sides", ()))
    _at_most("limits.max-pixels", limits.max_pixels, f"{config.dataset}: pixels", pixels)


def _check_described(answers: AnswerPolicy, config: Config) -> None:
    """Refuse letters that describe few examples: a leaf of a tree, a column of a curvature."""
    flat = config.flat()
    for key, least, name in (
        ("answers.min-examples", answers.min_examples, "min-samples-leaf"),
        ("answers.min-examples", answers.min_examples, "min-rows"),
        ("answers.threshold-step", answers.threshold_step, "threshold-step"),
    ):
        for part in (*config.kinds, config.method):
            value = flat.get(f"{part}.{name}")
            if isinstance(value, int | float) and value < least:
                raise PolicyError(
                    f"{key} = {least} does not allow {part}.{name} = {value}: such letters leave "
                    f"as they are, so the run must set {part}.{name}={least} or more"
                )


def max_parameters(policy: Policy, config: Config) -> int:
    """Return the maximum number of parameters of a network, given the models that a peer keeps."""
    rounds = config.num_server_rounds if config.options.keeps_rounds else 1
    return policy.limits.max_parameters // (config.options.models_kept(config.peers) * rounds)


def check_letters(policy: Policy, nbytes: int) -> None:
    """Refuse a run whose letters of one round take too much memory."""
    _at_most("limits.max-bytes", policy.limits.max_bytes, "letters of a round: bytes", nbytes)


def check_own_data(policy: Policy, config: Config, problem: Problem, peer: int) -> None:
    """Refuse own data with too few examples or groups, and statistics that may not leave."""
    # The DataError is that of any unsuitable data: a run cannot probe the number of examples.
    if not is_own(config.dataset):
        return
    minimum, sizes = policy.data.min_examples, problem.sizes(peer, in_groups=True)
    for part, size in sizes.items():
        if size < minimum and (size or part != "validation"):
            raise DataError(
                f"data.min-examples = {minimum} does not allow {size} examples in the {part} part"
            )
    behind = policy.answers.min_examples
    if config.row.strategy.exchanges and sizes["train"] < behind:
        raise DataError(
            f"answers.min-examples = {behind} does not allow answers over {sizes['train']} examples"
        )
    if problem.groups is not None and config.row.strategy.exchanges:
        rows = int(np.unique(problem.groups[problem.train.rows[peer]], return_counts=True)[1].max())
        for kind in config.kinds:  # fewer rows could be those of fewer groups
            leaf = config.flat().get(f"{kind}.min-samples-leaf")
            if isinstance(leaf, int) and leaf < behind * rows:
                raise DataError(
                    f"answers.min-examples = {behind} counts patients in each leaf, who have up to "
                    f"{rows} rows here: the run must set {kind}.min-samples-leaf={behind * rows}"
                )
    _check_statistics(policy, config, problem)


def shares_statistics(policy: Policy, config: Config) -> bool:
    """Return whether statistics of columns may leave in a run: only in sealed letters."""
    return policy.shares_statistics and config.sealing is not False


def _check_statistics(policy: Policy, config: Config, problem: Problem) -> None:
    """Refuse a common scale if no statistics may leave, and schema.toml has no scale."""
    if scale_of(config) != "common" or shares_statistics(policy, config):
        return
    assert problem.table is not None
    try:
        agreed(problem.table.columns)
    except DataError as error:
        if policy.shares_statistics:
            raise PolicyError(
                "statistics of columns leave in sealed letters only, and the run has sealing = "
                f'false with table.scale = "common": seal it; or {error}'
            ) from None
        share = policy.data.share_statistics
        raise PolicyError(
            f'data.share-statistics = "{share}" with approval = "{policy.approval}" does not allow '
            f'table.scale = "common": set it to "yes" if statistics may leave; or {error}'
        ) from None


def _listed(key: str, allowed: str, where: str, wanted: list[str]) -> None:
    for name in wanted:
        if allowed != ANY and name not in words(allowed):
            raise PolicyError(
                f'{key} = "{allowed}" does not allow {where} = "{name}": add it there if it may run'
            )


def _at_most(key: str, maximum: float, where: str, wanted: float) -> None:
    if not wanted <= maximum:
        raise PolicyError(
            f"{key} = {maximum} does not allow {where} = {wanted}: raise it there if it may run"
        )


def _batches_of(key: str, minimum: int, config: Config) -> None:
    for name, value in config.flat().items():
        if name.endswith("batch-size") and isinstance(value, int) and value < minimum:
            raise PolicyError(
                f"{key} = {minimum} does not allow {name} = {value}: the run must take a larger one"
            )


def _answers_allowed(policy: Policy, config: Config) -> None:
    if policy.answers.kind == "plain":
        return
    try:
        _private_enough(replace(policy.privacy, kind="examples"), config.privacy)
    except PolicyError as error:
        raise PolicyError(
            f'answers.kind = "private" does not allow method = "{config.method}" without '
            f"differential privacy on own data: {error}; or a person writes answers.kind = "
            '"plain", whose comment in the policy explains the disclosure'
        ) from None


def _private_enough(needed: PrivacyPolicy, run: Privacy) -> None:
    if run.kind != "none" and not run.noise:
        raise PolicyError(
            'no policy allows privacy.kind = "examples" with privacy.noise = 0, which protects '
            "nothing: it is for simulations"
        )
    if needed.kind == "none":
        return
    if run.kind != needed.kind:
        raise PolicyError(
            f'privacy.kind = "{needed.kind}" does not allow the run\'s privacy.kind = '
            f'"{run.kind}": it must protect single examples'
        )
    if not run.budget:
        raise PolicyError(
            f"privacy.max-epsilon = {needed.max_epsilon} does not allow a run without "
            "privacy.budget: it must stop there"
        )
    _at_most("privacy.max-epsilon", needed.max_epsilon, "privacy.budget", run.budget)
    _at_most("privacy.max-delta", needed.max_delta, "privacy.delta", run.delta)
