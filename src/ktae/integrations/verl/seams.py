"""What is patched where: the only list of veRL's seams."""

import logging
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
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
    "verl.utils.config": {"validate_config": validate_with_trainer},
}


def install() -> None:
    """Register the estimator and wrap the seams, now or when their modules are imported. Safe to call again."""
    patches = {name: partial(_wrap, seams) for name, seams in SEAMS.items()}
    patch_on_import({"verl.trainer.ppo.core_algos": _register, **patches})


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
            logger.warning(
                "verl %s has no %s.%s, which ktae wraps to reach the token ids. Runs with adv_estimator=%s may "
                "stop with an error. The README of ktae lists the versions that work.",
                version("verl"),
                module.__name__,
                path,
                NAME,
            )
        elif not hasattr(original, "__ktae_wraps__"):
            wrapper: Any = wrap(original)
            wrapper.__ktae_wraps__ = original
            setattr(owner, name, wrapper)
