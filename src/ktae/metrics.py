"""The estimate of a batch, and what a tracker shows of it."""

import functools
import logging
from typing import NamedTuple

import torch
from torch import Tensor

from ktae.config import KTAEConfig
from ktae.counting import TokenCounts, Totals

logger = logging.getLogger(__name__)

SATURATED = 0.9


class Estimate(NamedTuple):
    """What :func:`ktae.estimator.estimate` returns: the advantages, and figures about what was added."""

    advantages: Tensor  # [B, T]
    totals: Totals  # of each group, on the CPU
    # Of the key-token values before the shift of `offset`:
    value: Tensor  # [n_groups] sum over the group's tokens, on the CPU
    n_nonzero: int  # tokens with a key-token value other than 0
    n_saturated: int  # tokens whose |value| exceeds SATURATED * scale
    total_magnitude: float  # sum of |value| over the tokens

    def metrics(self) -> dict[str, float]:
        """The figures that a tracker shows, by name."""
        outcomes = self.totals.rollouts
        groups = max(outcomes.shape[1], 1)
        return {
            "ktae/mixed_group_share": (outcomes > 0).all(0).sum().item() / groups,
            "ktae/single_rollout_group_share": (outcomes.sum(0) == 1).sum().item() / groups,
            **self.value_metrics(),
        }

    def value_metrics(self) -> dict[str, float]:
        """Those of the figures that are about the key-token values."""
        tokens = max(int(self.totals.tokens.sum()), 1)
        metrics = {
            "ktae/nonzero_token_share": self.n_nonzero / tokens,
            "ktae/mean_value": self.value.sum().item() / tokens,
            "ktae/mean_abs_value": self.total_magnitude / tokens,
            "ktae/saturated_token_share": self.n_saturated / tokens,
        }
        correlation = self._value_accuracy_correlation()
        return metrics if correlation is None else {**metrics, "ktae/value_accuracy_correlation": correlation}

    def _value_accuracy_correlation(self) -> float | None:
        """Of a group's mean value and accuracy over the groups with both outcomes.

        Far from 0, key-token values are an offset that depends on how hard the prompt is. None for fewer than three
        groups, and where one of the two is constant.
        """
        mixed = (self.totals.rollouts > 0).all(0)
        if int(mixed.sum()) < 3:  # any two points lie on a line
            return None
        mean_value = self.value[mixed] / self.totals.tokens.sum(0)[mixed]
        n_incorrect, n_correct = self.totals.rollouts[:, mixed].double()
        both = torch.stack([mean_value, n_correct / (n_incorrect + n_correct)])
        if bool((both.std(1) <= 1e-12 * both.abs().amax(1)).any()):
            return None
        return torch.corrcoef(both)[0, 1].item()

    def warn_if_all_one_sided(self, label: str, option: str) -> None:
        """Warn, once per label, when groups have several rollouts, but none has both outcomes.

        Args:
            label: what makes a rollout correct, in words.
            option: what to set to change it.
        """
        incorrect, correct = self.totals.rollouts
        if bool((incorrect + correct > 1).any()) and not bool(((incorrect > 0) & (correct > 0)).any()):
            _warn_one_sided(label, option)


def sum_values(value: Tensor, counts: TokenCounts, n_groups: int, config: KTAEConfig) -> tuple[Tensor, Tensor]:
    """Of the tokens counted, given their key-token values [P] or [2, P]: the sum for each group [n_groups], and over
    all how many have a value, how many a saturated one, and the sum of the magnitudes [3]."""
    assert config.scale is not None
    occurrences = (counts.occurrences if value.dim() == 2 else counts.occurrences.sum(0)).double()
    of_pair = occurrences * value
    of_pair = of_pair.sum(0) if value.dim() == 2 else of_pair
    # On the CPU, since a GPU adds in no fixed order, and `offset` makes advantages of it.
    of_group = torch.bincount(counts.group.cpu(), weights=of_pair.cpu(), minlength=n_groups)
    magnitude = value.abs()
    columns = (magnitude > 0, magnitude > SATURATED * config.scale, magnitude)
    return of_group, torch.stack([occurrences.flatten() @ column.double().flatten() for column in columns])


@functools.cache
def _warn_one_sided(label: str, option: str) -> None:
    logger.warning(
        "No group of this batch has both correct and incorrect rollouts that are not masked, so no token has a "
        "key-token value and the advantages are those of the rollouts alone. A rollout is correct if %s. "
        "If the rewards differ within groups, this label misses it: set %s. If they do not, the prompts are too easy "
        "or too hard. This is said once; the metric ktae/mixed_group_share tells it in every step.",
        label,
        option,
    )
