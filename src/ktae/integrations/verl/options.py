"""`+algorithm.ktae.*` of a veRL run -> the estimator's settings."""

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ktae.config import KTAEConfig
from ktae.integrations.verl.side_dump import Dump

logger = logging.getLogger(__name__)

NAME = "ktae"

# Options of the veRL integration, beside those of KTAEConfig.
NAMES = ("correct_key", "base_estimator", "dump_dir", "dump_every", "dump_groups", "chance_every")

# Names of the published training scripts.
ALIASES = {
    "alpha": "fisher_weight",
    "beta_ig": "information_gain_weight",
    "gamma_tf": "term_frequency_weight",
    "top": "scale",
}


@dataclass(frozen=True)
class Options:
    """Settings of a veRL run.

    Args:
        config: the estimator's settings.
        correct_key: name of the reward extra that says whether a rollout is correct; None: the score does.
        base_estimator: name of the registered estimator whose advantages are the rollout-level part; None: GRPO's.
        dump: what of a step is written where; None: nothing.
        chance_every: steps from one to the next in which the metrics are shown for permuted outcomes too; 0: never.
    """

    config: KTAEConfig
    correct_key: str | None = None
    base_estimator: str | None = None
    dump: Dump | None = None
    chance_every: int = 10


def parse_options(algorithm: Any) -> Options:
    """Read the options from veRL's `config.algorithm`: a DictConfig, a dict, an AlgoConfig or None.

    Raises:
        ValueError: an unknown option, an option given under two names or without effect, or a value that KTAEConfig
            refuses.

    Example:
        >>> parse_options({"ktae": {"beta_ig": 2, "correct_key": "acc"}}).config.information_gain_weight
        2
    """
    get = algorithm.get if algorithm is not None else {}.get
    given = _plain(get("ktae", None))
    settings = _rename_aliases(given)
    correct_key = _name(settings, "correct_key", "a reward extra, such as acc")
    base_estimator = _name(settings, "base_estimator", "an estimator of veRL, such as rloo")
    dump = _dump(settings)
    chance_every = settings.pop("chance_every", Options.chance_every)
    if isinstance(chance_every, bool) or not isinstance(chance_every, int) or chance_every < 0:
        raise ValueError(f"+algorithm.ktae.chance_every={chance_every!r}: give a whole number of steps, 0 for never.")
    if settings.pop("bottom", None) is not None:
        _warn_once("+algorithm.ktae.bottom has no effect: the published code reads it but never uses it.")
    if given.get("beta_ig", 1) != 1:
        _warn_once(
            f"+algorithm.ktae.beta_ig={given['beta_ig']} takes effect: the published code ignores it, as if it were 1."
        )
    known = [field.name for field in fields(KTAEConfig)]
    unknown = sorted(str(name) for name in settings if name not in known)
    if unknown:
        raise ValueError(
            f"Unknown option +algorithm.ktae.{unknown[0]}. Known options: {', '.join([*known, *NAMES])}; and "
            f"those of the published scripts: {', '.join([*ALIASES, 'pad_token_id', 'bottom'])}."
        )
    of_grpo = sorted({"norm_adv_by_std", "epsilon"} & set(settings))
    if base_estimator is not None and of_grpo:
        raise ValueError(
            f"+algorithm.ktae.{of_grpo[0]} is about the GRPO advantage that +algorithm.ktae.base_estimator="
            f"{base_estimator} replaces: leave it out. Set what the base reads, such as "
            "algorithm.norm_adv_by_std_in_grpo."
        )
    settings.setdefault("norm_adv_by_std", get("norm_adv_by_std_in_grpo", True))
    return Options(KTAEConfig(**settings), correct_key, base_estimator, dump, chance_every)


@functools.cache
def _warn_once(message: str) -> None:
    """The options are read in every step: warn in the first one of the process alone."""
    logger.warning(message)


def _plain(options: Any) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ValueError(f"algorithm.ktae={options!r}: give options one by one, as +algorithm.ktae.scale=1.")
    if type(options).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        options = OmegaConf.to_container(options, resolve=True)  # pyright: ignore[reportArgumentType]
    return {name: value for name, value in options.items() if value is not None}  # null: as if not given


def _dump(settings: dict[str, Any]) -> Dump | None:
    """Take the options of the side-dump out of the settings."""
    directory = _name(settings, "dump_dir", "a directory")
    amounts = {name: settings.pop(f"dump_{name}") for name in ("every", "groups") if f"dump_{name}" in settings}
    for name, value in amounts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"+algorithm.ktae.dump_{name}={value!r}: give a whole number from 1 on.")
        if directory is None:
            raise ValueError(f"+algorithm.ktae.dump_{name} has no effect without +algorithm.ktae.dump_dir.")
    return None if directory is None else Dump(directory, **amounts)


def _name(settings: dict[str, Any], option: str, what: str) -> str | None:
    """Take the option, a name, out of the settings."""
    value = settings.pop(option, None)
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"+algorithm.ktae.{option}={value!r}: give the name of {what}.")
    return value


def _rename_aliases(given: dict[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in given.items() if name not in ALIASES and name != "pad_token_id"}
    for alias, name in ALIASES.items():
        if alias in given:
            if name in given:
                raise ValueError(f"+algorithm.ktae.{alias} and +algorithm.ktae.{name} are one option: give it once.")
            settings[name] = given[alias]
    if "pad_token_id" in given:
        ignored = settings.get("ignore_token_ids", [])
        settings["ignore_token_ids"] = [
            *(ignored if isinstance(ignored, (list, tuple)) else [ignored]),
            given["pad_token_id"],
        ]
    return settings
