"""Settings of the estimator."""

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

import numpy as np

Preset = Literal["published", "paper", "calibrated"]

LARGEST = 1e30  # weight or scale, so that what is computed with them stays finite in float32


@dataclass(frozen=True, kw_only=True)
class KTAEConfig:
    r"""Settings of :func:`ktae.compute_ktae_advantage`, validated on construction.

    Two presets exist because the paper and the code that produced its results differ. They set the default of `scale`,
    the p-value behind the Fisher score and the way Fisher score :math:`F` and information gain :math:`IG` are combined:

    ==============  =================================================  ==============================================
    preset          `published` (the default)                          `paper` (as printed)
    ==============  =================================================  ==============================================
    p-value         two-sided Fisher's exact test                      probability of the observed table
    strength        :math:`(h_1 F + h_2 IG) / (h_1 + h_2)`             :math:`h_1 F + h_2 IG`
    scale           1: values in (-1, 1)                               1/2: sigmoid - 1/2, values in (-1/2, 1/2)
    ==============  =================================================  ==============================================

    `calibrated` is neither: an experimental estimator of this library's own, from the study in docs/results.md. A
    token's value in a rollout is :math:`\tanh(z/2)` times the scale, z from the *other* rollouts of the group alone
    (:func:`ktae.association.hypergeometric_z`), shifted to a mean of 1/2 in each group with both outcomes.

    Args:
        preset: `published`, `paper` or `calibrated`. The latter has no use for the three weights: they have to be 1.
        fisher_weight: h1 >= 0, weight of the Fisher score (`alpha` in the published scripts).
        information_gain_weight: h2 >= 0, weight of the information gain (`beta_ig`).
        term_frequency_weight: h3 >= 0, weight of the BM25 term-frequency contrast in the direction (`gamma_tf`).
        scale: bound of the key-token value's magnitude before the shift (`top`), >= 0; 0 without an offset leaves the
            rollout-level advantage alone. None: the preset's. It is resolved on construction, so `dataclasses.replace`
            carries the resolved number over.
        offset: mean that the key-token values of each group with both outcomes are shifted to; the metrics and tables
            are those before. None: the preset's, which is 1/2 for `calibrated` and no shift for the others. It is
            resolved as `scale` is. `scale=0, offset=0.5` adds a constant, without anything about tokens: the control.
        correct_threshold: a rollout is correct when its score is strictly greater. Unused when `is_correct` is given.
        ignore_token_ids: ids whose key-token value is 0 before the shift. They still count in the rollouts' lengths.
        norm_adv_by_std: divide the rollout-level advantage by the group's standard deviation (GRPO); False is Dr.GRPO.
        epsilon: added to that standard deviation.

    Raises:
        ValueError: a weight, `scale` or `epsilon` is negative or not finite, fisher_weight and
            information_gain_weight are both 0, the offset is not finite, the threshold is NaN, the ignored ids are no
            tuple of integers, the preset is unknown, or a weight of `calibrated` is not 1.

    Source:
        Sun et al., "KTAE: A Model-Free Algorithm to Key-Tokens Advantage Estimation in Mathematical Reasoning",
        NeurIPS 2025, arXiv 2505.16826.

    Example:
        >>> KTAEConfig().scale, KTAEConfig(preset="paper").scale
        (1.0, 0.5)
    """

    preset: Preset = "published"
    fisher_weight: float = 1.0
    information_gain_weight: float = 1.0
    term_frequency_weight: float = 1.0
    scale: float | None = None
    offset: float | None = None
    correct_threshold: float = 0.0
    ignore_token_ids: tuple[int, ...] = ()
    norm_adv_by_std: bool = True
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.preset not in get_args(Preset):
            raise ValueError(f"preset={self.preset!r} is unknown. Known presets: {', '.join(get_args(Preset))}.")
        if self.scale is None:
            object.__setattr__(self, "scale", 0.5 if self.preset == "paper" else 1.0)
        if self.preset == "calibrated":
            self._check_calibrated()
        for name in ("fisher_weight", "information_gain_weight", "term_frequency_weight", "scale", "epsilon"):
            _check_number(name, getattr(self, name))
            if not 0 <= getattr(self, name) <= LARGEST:
                raise ValueError(f"{name}={getattr(self, name)!r}: KTAE needs a number from 0 to {LARGEST:g}.")
        if self.fisher_weight + self.information_gain_weight == 0:
            raise ValueError(
                "fisher_weight and information_gain_weight are both 0, which leaves no strength to weight the "
                "direction with. Set scale=0 to switch the key-token value off."
            )
        if self.offset is not None:
            _check_number("offset", self.offset)
            if not abs(self.offset) <= LARGEST:
                raise ValueError(f"offset={self.offset!r}: KTAE needs a number from {-LARGEST:g} to {LARGEST:g}.")
            object.__setattr__(self, "offset", float(self.offset))
        _check_number("correct_threshold", self.correct_threshold)
        if math.isnan(self.correct_threshold):
            raise ValueError("correct_threshold is NaN: no score is greater than it, so every rollout were incorrect.")
        if self.norm_adv_by_std not in (True, False):
            raise ValueError(f"norm_adv_by_std={self.norm_adv_by_std!r}: give True (GRPO) or False (Dr.GRPO).")
        if not isinstance(self.ignore_token_ids, (tuple, list, set, frozenset)):
            raise ValueError(f"ignore_token_ids={self.ignore_token_ids!r}: give a tuple, also for one id: (151643,).")
        for token_id in self.ignore_token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, Integral) or not -(2**63) <= token_id < 2**63:
                raise ValueError(f"ignore_token_ids contains {token_id!r}: token ids are integers of 64 bits.")
        object.__setattr__(self, "ignore_token_ids", tuple(int(token_id) for token_id in self.ignore_token_ids))

    def _check_calibrated(self) -> None:
        if self.offset is None:
            object.__setattr__(self, "offset", 0.5)
        for name in ("fisher_weight", "information_gain_weight", "term_frequency_weight"):
            if getattr(self, name) != 1:
                raise ValueError(
                    f'{name}={getattr(self, name)!r} has no effect with preset="calibrated": leave it out.'
                )


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{name}={value!r} ({type(value).__name__}): KTAE needs a number.")
