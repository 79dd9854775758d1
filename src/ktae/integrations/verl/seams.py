"""What is patched where: the only list of veRL's seams."""

import functools
import logging
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ktae.integrations.verl import dataproto, transfer_queue
from ktae.integrations.verl.estimator import compute_advantage, validate_with_trainer
from ktae.integrations.verl.import_hooks import patch_on_import
from ktae.integrations.verl.options import NAME

logger = logging.getLogger(__name__)

Wrap = Callable[[Any], Callable]

# module -> attributes of it, and what makes the wrapper of each
SEAMS: dict[str, dict[str, Wrap]] = {
    "verl.trainer.ppo.ray_trainer": {"compute_advantage": dataproto.lend_batch},
    "verl.trainer.ppo.metric_utils": {"compute_data_metrics": dataproto.add_metrics},
    "verl.trainer.ppo.v1.trainer_base": {"PPOTrainer._compute_advantage": transfer_queue.lend_batch},
    "verl.trainer.main_ppo_sync": {"PPOTrainer._compute_advantage": transfer_queue.lend_batch},
    "verl.utils.config": {"validate_config": lambda original: _patch_main_first(validate_with_trainer(original))},
}

# The modules that not every supported version has: the first one that has it, and the first one that no longer does.
LIFETIMES = {
    "verl.trainer.ppo.v1.trainer_base": ("0.9", None),
    "verl.trainer.main_ppo_sync": ("0.8", "0.9"),
}

OLDEST = "0.6"


def install() -> None:
    """Register the estimator and wrap the seams, now or when their modules are imported. Safe to call again.

    Raises:
        ImportError: this veRL refuses estimators that are not its own.
    """
    _check_version()
    patches = {name: partial(_wrap, seams) for name, seams in SEAMS.items()}
    patch_on_import({"verl.trainer.ppo.core_algos": _register, **patches})


def _check_version() -> None:
    installed = _verl_version()
    if installed is None:
        return
    from packaging.version import Version  # veRL has it

    # Development builds of a version count as that version.
    release = Version(Version(installed).base_version)
    if release < Version(OLDEST):
        raise ImportError(
            f"verl {installed} is not supported by ktae: its trainer knows its own advantage estimators only, and "
            f"stops with NotImplementedError for adv_estimator={NAME}. Install verl>={OLDEST}.1, or call "
            "ktae.compute_ktae_advantage in a trainer of your own."
        )
    for name in SEAMS:
        first, end = LIFETIMES.get(name, (OLDEST, None))
        expected = Version(first) <= release and (end is None or release < Version(end))
        if expected and not _exists(name):
            _warn_missing(name)


def _verl_version() -> str | None:
    try:
        return version("verl")
    except PackageNotFoundError:  # a checkout on the path
        return getattr(sys.modules.get("verl"), "__version__", None)


def _exists(name: str) -> bool:
    """Whether veRL has this module, found without importing its parents, which would cost seconds."""
    package, *rest = name.split(".")
    spec = find_spec(package)
    for part in rest:
        package = f"{package}.{part}"
        spec = PathFinder.find_spec(package, spec.submodule_search_locations) if spec is not None else None
    return spec is not None


def _warn_missing(name: str) -> None:
    logger.warning(
        "verl %s has no %s, which ktae wraps to reach the token ids. Runs with adv_estimator=%s may stop with an "
        "error. The README of ktae lists the versions that work.",
        _verl_version(),
        name,
        NAME,
    )


def _patch_main_first(validate_config: Callable) -> Callable:
    """Wrap `verl.utils.config.validate_config`, which a trainer calls before it sends its classes to Ray.

    `python -m verl.trainer.main_ppo_sync` executes that module as `__main__`. It is not imported, so it is not patched
    by then, and Ray sends its classes as they are, not by their names.
    """

    @functools.wraps(validate_config)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        main = sys.modules["__main__"]
        name = getattr(getattr(main, "__spec__", None), "name", None)
        _wrap(SEAMS.get(name or "", {}), main)
        return validate_config(*args, **kwargs)

    return wrapper


def _register(core_algos: ModuleType) -> None:
    try:
        core_algos.register_adv_est(NAME)(compute_advantage)
    except ValueError as error:
        raise ValueError(
            f"Two advantage estimators are called {NAME}, the other one from a veRL or a module of yours ({error}). "
            "Remove it, or switch this one off with VERL_USE_EXTERNAL_PLUGINS=none."
        ) from error


def _wrap(seams: dict[str, Wrap], module: ModuleType) -> None:
    for path, wrap in seams.items():
        *owners, name = path.split(".")
        owner: Any = module
        for attribute in owners:
            owner = getattr(owner, attribute, None)
        original = getattr(owner, name, None)
        if original is None:
            _warn_missing(f"{module.__name__}.{path}")
        elif not hasattr(original, "__ktae_wraps__"):
            wrapper: Any = wrap(original)
            wrapper.__ktae_wraps__ = original
            setattr(owner, name, wrapper)
