"""From counts to the key-token value of each (group, token)."""

import torch
from torch import Tensor

from ktae.association import (
    bm25,
    bm25_saturation_point,
    effect_size,
    fisher_exact_pvalue,
    fisher_score,
    hypergeometric_z,
    information_gain,
    table_probability,
)
from ktae.config import KTAEConfig
from ktae.counting import Tables, TokenCounts, Totals, distinct

RATIO_EPSILON = 1e-5  # added to the denominators of the direction's ratios

# Up to this many possible tables (such as all of groups of 32 rollouts) are evaluated before any token is counted.
FEW_TABLES = 1 << 13


def evaluate(tables: Tables, number: Tensor, config: KTAEConfig) -> dict[str, Tensor]:
    """Association of token and outcome in the tables with these numbers [D].

    Returns:
        Columns of :class:`ktae.KeyTokenTable`, from `a` to `strength`, [D] each.
    """
    a, b, c, d = tables.cells(number)
    as_printed = config.preset == "paper"
    p = table_probability(a, b, c, d) if as_printed else fisher_exact_pvalue(a, b, c, d)
    f, gain = fisher_score(p), information_gain(a, b, c, d)
    h1, h2 = config.fisher_weight, config.information_gain_weight
    if as_printed:
        strength = h1 * f + h2 * gain
    else:
        largest = max(h1, h2)  # weights of any size, without over- or underflow
        h1, h2 = h1 / largest, h2 / largest
        strength = (h1 * f + h2 * gain) / (h1 + h2)
    return {
        "a": a,
        "b": b,
        "c": c,
        "d": d,
        "p_value": p,
        "fisher_score": f,
        "information_gain": gain,
        "effect_size": effect_size(a, b, c, d),
        "strength": strength,
    }


def evaluate_all(tables: Tables, config: KTAEConfig) -> dict[str, Tensor] | None:
    """:func:`evaluate` for every number; None where there are many, of which few will occur, or none is needed."""
    if tables.n_tables > FEW_TABLES or config.preset == "calibrated":
        return None
    return evaluate(tables, torch.arange(tables.n_tables, device=tables.first.device), config)


def associate(
    counts: TokenCounts, tables: Tables, config: KTAEConfig, known: dict[str, Tensor] | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """The statistics of :func:`evaluate`, and which of them are those of each token [P].

    `known` holds the statistics of all tables; without it those are evaluated that occur.
    """
    number = tables.number(counts)
    if known is not None:
        return known, number
    numbers, table = distinct(number)
    return evaluate(tables, numbers, config), table


def key_token_values(
    counts: TokenCounts,
    totals: Totals,
    tables: Tables,
    config: KTAEConfig,
    known: dict[str, Tensor] | None = None,
) -> Tensor:
    """Key-token value of each token; `known` as for :func:`associate`.

    Returns:
        [P], or [2, P] where it is another in the incorrect rollouts than in the correct ones.
    """
    if config.preset == "calibrated":
        value = leave_one_out_values(counts, totals)
    else:
        association, table = associate(counts, tables, config, known)
        strength, h = (association[name].index_select(0, table) for name in ("strength", "effect_size"))
        value = torch.tanh(strength * directions(counts, totals, h, config)["direction"] / 2)
    assert config.scale is not None  # resolved by KTAEConfig
    value = config.scale * value
    if config.ignore_token_ids:
        ignored = torch.tensor(config.ignore_token_ids, dtype=torch.long, device=value.device)
        value = value.masked_fill(torch.isin(counts.token_id, ignored), 0.0)
    return value


def leave_one_out_values(counts: TokenCounts, totals: Totals) -> Tensor:
    """tanh(z/2) [2, P], z from the rollouts of the group other than the one that the token stands in.

    Its own outcome would speak for every token of a rollout, whatever it is.
    """
    b, a = counts.rollouts
    n_incorrect, n_correct = (x.index_select(0, counts.group) for x in totals.rollouts)
    c, d = n_correct - a, n_incorrect - b
    of_incorrect = hypergeometric_z(a, (b - 1).clamp(min=0), c, d)
    of_correct = hypergeometric_z((a - 1).clamp(min=0), b, c, d)
    return torch.tanh(torch.stack([of_incorrect, of_correct]) / 2)


def directions(counts: TokenCounts, totals: Totals, effect_size: Tensor, config: KTAEConfig) -> dict[str, Tensor]:
    """Term frequencies and direction of each token, given the effect size of its table [P].

    Returns:
        Columns of :class:`ktae.KeyTokenTable`, from `term_frequency_correct` to `direction`, [P] each.
    """
    length = totals.tokens.double()
    saturation_point = bm25_saturation_point(length, length.mean(0))
    tf, s = [], []
    for side in range(2):
        of_group = (x[side].index_select(0, counts.group) for x in (length.clamp(min=1), saturation_point))
        frequency, saturation = bm25(counts.occurrences[side], *of_group)
        tf.append(frequency)
        s.append(saturation)
    contrast = s[1] / (s[0] + RATIO_EPSILON) - s[0] / (s[1] + RATIO_EPSILON)
    two_sided = (totals.rollouts > 0).all(0).index_select(0, counts.group)
    direction = torch.where(two_sided, effect_size + config.term_frequency_weight * contrast, 0.0)
    return {
        "term_frequency_correct": tf[1],
        "term_frequency_incorrect": tf[0],
        "saturation_correct": s[1],
        "saturation_incorrect": s[0],
        "direction": direction,
    }
