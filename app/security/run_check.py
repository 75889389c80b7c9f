"""Whether an institution's policy allows a run, and whether its own data are enough for one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from coterie.app.config.config import Config
from coterie.app.security.policy import ANY, LimitPolicy, Policy, PolicyError, PrivacyPolicy
from coterie.clients.privacy import Privacy
from coterie.datasets.own.image_folder import ImageFolderOptions
from coterie.datasets.own.institutions import words
from coterie.datasets.problem import DataError
from coterie.datasets.table import dataset_of


def is_own(dataset: str) -> bool:
    """Whether only the institution has that data set: then its examples are protected."""
    return dataset_of(dataset).deployed is not None


def check_run(policy: Policy, config: Config) -> None:
    """Refuse a run that the policy does not allow, and one whose peers lie; reads no data.

    Raises
    ------
    PolicyError
        Names the first key that is violated.
    """
    data, own = policy.data, config.dataset_options
    if config.attack.kind != "none":
        raise PolicyError(
            f'no policy allows attack.kind = "{config.attack.kind}": attackers are for simulations'
        )
    _listed("methods", policy.methods, "method", [config.method])
    _listed("data.sets", data.sets, "dataset", [config.dataset])
    _most("most-peers", policy.most_peers, "peers", config.peers)
    _most("most-rounds", policy.most_rounds, "num-server-rounds", config.num_server_rounds)
    _check_sizes(policy.limits, config)
    _private_enough(policy.privacy, config.privacy)
    if not is_own(config.dataset):
        return
    for key, value in config.flat().items():
        if key.endswith("batch-size") and isinstance(value, int) and value < data.least_batch_size:
            raise PolicyError(
                f"data.least-batch-size = {data.least_batch_size} does not allow {key} = {value}: "
                "the run must take a larger one"
            )
    for key in ("columns", "label"):
        if hasattr(own, key):
            allowed, wanted = getattr(data, key), getattr(own, key)
            where = f"{config.dataset}.{key}"
            _listed(f"data.{key}", allowed, where, words(wanted) if key == "columns" else [wanted])
    for key in ("classes", "mean", "std"):
        if not hasattr(own, key):
            continue
        allowed, wanted = getattr(data, key), getattr(own, key)
        if words(wanted) != words(allowed) and (key, allowed) != ("classes", ANY):
            raise PolicyError(
                f'data.{key} = "{allowed}" does not allow {config.dataset}.{key} = "{wanted}": '
                "the institution's own file decides"
            )


def _check_sizes(limits: LimitPolicy, config: Config) -> None:
    """Refuse a run that takes more memory or time than the policy allows, as far as its keys say.

    Raises
    ------
    PolicyError : names the first key.
    """
    of_keys = {
        "steps": ("max-steps", limits.max_steps),
        "epochs": ("max-epochs", limits.max_epochs),
        "batch-size": ("max-batch-size", limits.max_batch_size),
        "context": ("max-context", limits.max_context),
    }
    for key, value in config.flat().items():
        for last, (most, limit) in of_keys.items():
            if key.endswith(last) and isinstance(value, int):
                _most(f"limits.{most}", limit, key, value)
    depth = getattr(config.model_options, "depth", 0)
    _most("limits.max-layers", limits.max_layers, f"{config.network}: layers", depth)
    if isinstance(own := config.dataset_options, ImageFolderOptions):
        pixels = math.prod(own.sides)
        _most("limits.max-pixels", limits.max_pixels, f"{config.dataset}.shape, pixels", pixels)


def max_parameters(policy: Policy, config: Config) -> int:
    """The numbers that a network may have so that all models which a peer keeps are allowed."""
    kept = getattr(config.options, "models_kept", None)
    return policy.limits.max_parameters // (1 if kept is None else kept(config.peers))


def check_letters(policy: Policy, nbytes: int) -> None:
    """Refuse a run whose letters of one round take too much memory.

    Raises
    ------
    PolicyError
        Names the key.
    """
    _most("limits.max-bytes", policy.limits.max_bytes, "letters of a round: bytes", nbytes)


def check_counts(policy: Policy, sizes: Mapping[str, int]) -> None:
    """Refuse own data of which there are too few; a part that is not used may be empty.

    Parameters
    ----------
    sizes : part -> number of examples.

    Raises
    ------
    DataError
        As of any data that do not fit: how many there are is not to be found out by asking.
    """
    least = policy.data.least_examples
    for part, size in sizes.items():
        if size < least and (size or part != "validation"):
            raise DataError(
                f"data.least-examples = {least} does not allow {size} examples in the {part} part"
            )


def _listed(key: str, allowed: str, where: str, wanted: list[str]) -> None:
    for name in wanted:
        if allowed != ANY and name not in words(allowed):
            raise PolicyError(
                f'{key} = "{allowed}" does not allow {where} = "{name}": add it there if it may run'
            )


def _most(key: str, most: float, where: str, wanted: float) -> None:
    if wanted > most:
        raise PolicyError(
            f"{key} = {most} does not allow {where} = {wanted}: raise it there if it may run"
        )


def _private_enough(needed: PrivacyPolicy, found: Privacy) -> None:
    if needed.kind == "none":
        return
    if found.kind != needed.kind:
        raise PolicyError(
            f'privacy.kind = "{needed.kind}" does not allow the run\'s privacy.kind = '
            f'"{found.kind}": it must protect single examples'
        )
    if not found.budget:
        raise PolicyError(
            f"privacy.most-epsilon = {needed.most_epsilon} does not allow a run without "
            "privacy.budget: it must stop there"
        )
    _most("privacy.most-epsilon", needed.most_epsilon, "privacy.budget", found.budget)
    _most("privacy.most-delta", needed.most_delta, "privacy.delta", found.delta)
