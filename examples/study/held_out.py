"""Do key tokens tell right from wrong in rollouts that they were not computed from? python examples/study/held_out.py

From each group a correct and an incorrect rollout are held out, every such pair in turn. The tokens' values come from
the rest; of the pair, the rollout with the larger mean value should be the correct one. The share of pairs where it is
(ties count half) is the group's AUC; 0.5 is chance. With one of each left out, the rest tells nothing.
"""

import argparse
import csv
import gzip
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ktae import KeyTokenTable, KTAEConfig, key_token_table
from ktae.association import hypergeometric_z

DATA = Path(__file__).with_name("data")
PARTS = {"all tokens": 1.0, "first four fifths": 0.8}
RESAMPLES = 10_000

Rollouts = list[np.ndarray]  # ids of the tokens of each
Value = Callable[[KeyTokenTable], Tensor]  # of each row of the table


class Group(NamedTuple):
    rollouts: Rollouts
    correct: np.ndarray


class Method(NamedTuple):
    """How a token is valued."""

    value: Value
    config: KTAEConfig = KTAEConfig()
    ngram: int = 1  # the token with the ones before it


def key_token_value(table: KeyTokenTable) -> Tensor:
    return table.key_token_value


def z(table: KeyTokenTable) -> Tensor:
    """Of the rollouts that are not held out, the one with the token among them."""
    return hypergeometric_z(table.a, table.b, table.c, table.d)


METHODS = {
    "published": Method(key_token_value),
    "paper": Method(key_token_value, KTAEConfig(preset="paper")),
    "no Fisher score": Method(key_token_value, KTAEConfig(fisher_weight=0)),
    "no information gain": Method(key_token_value, KTAEConfig(information_gain_weight=0)),
    "no term frequency": Method(key_token_value, KTAEConfig(term_frequency_weight=0)),
    "effect size alone": Method(lambda table: table.effect_size),
    "tanh(z/2)": Method(lambda table: torch.tanh(z(table) / 2)),
    "tanh(z/2), bigrams": Method(lambda table: torch.tanh(z(table) / 2), ngram=2),
    "tanh(z/2), trigrams": Method(lambda table: torch.tanh(z(table) / 2), ngram=3),
    "z cubed, trigrams": Method(lambda table: z(table) ** 3, ngram=3),
}


def read_ids(path: Path) -> Iterator[Group]:
    data = np.load(path)
    for uid in np.unique(data["uid"]):
        rows = np.flatnonzero(data["uid"] == uid)
        ids = [data["responses"][row][data["response_mask"][row] == 1] for row in rows]
        yield Group(ids, data["rewards"][rows] > 0)


def read_words(path: Path) -> Iterator[Group]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            group = json.loads(line)
            numbers: dict[str, int] = {}
            rollouts = [
                np.array([numbers.setdefault(word, len(numbers)) for word in re.findall(r"\w+|[^\w\s]", text)])
                for text in group["responses"]
            ]
            yield Group(rollouts, np.array(group["correct"], dtype=bool))


DATASETS: dict[str, Callable[[], Iterator[Group]]] = {
    "AMC 2023, 16, tokens": lambda: read_ids(DATA / "amc23_16.npz"),
    "AMC 2023, 50, words": lambda: read_words(DATA / "amc23_50.jsonl.gz"),
    "GSM8K, 4, words": lambda: read_words(DATA / "gsm8k_4.jsonl.gz"),
}


def ngrams(rollouts: Rollouts, n: int) -> Rollouts:
    """For each token the number of the n-gram that it ends; at the beginning a shorter one."""
    numbers: dict[tuple[int, ...], int] = {}
    return [
        np.array(
            [numbers.setdefault(tuple(ids[max(i - n + 1, 0) : i + 1].tolist()), len(numbers)) for i in range(len(ids))]
        )
        for ids in rollouts
    ]


def held_out_pairs(group: Group, most: int, generator: np.random.Generator) -> list[tuple[int, int]]:
    """All pairs of a correct and an incorrect rollout, or so many drawn at random."""
    correct, incorrect = np.flatnonzero(group.correct), np.flatnonzero(~group.correct)
    pairs = [(i, j) for i in correct for j in incorrect]
    if len(pairs) > most:
        pairs = [pairs[k] for k in generator.choice(len(pairs), most, replace=False)]
    return pairs


def auc(group: Group, method: Method, pairs: Sequence[tuple[int, int]]) -> float:
    """Share of the pairs whose correct rollout has the larger mean value."""
    units = ngrams(group.rollouts, method.ngram) if method.ngram > 1 else group.rollouts
    won = 0.0
    for pair in pairs:
        rest = [i for i in range(len(units)) if i not in pair]
        right, wrong = mean_values([units[i] for i in rest], group.correct[rest], [units[i] for i in pair], method)
        won += 1.0 if right > wrong else 0.5 if right == wrong else 0.0
    return won / len(pairs)


def mean_values(fitted: Rollouts, correct: np.ndarray, held_out: Rollouts, method: Method) -> list[float]:
    """Mean value of the tokens of each held-out rollout; a token that the fitted ones do not have counts as 0."""
    width = max(map(len, fitted))
    responses = torch.zeros(len(fitted), width, dtype=torch.long)
    mask = torch.zeros(len(fitted), width, dtype=torch.bool)
    for row, ids in enumerate(fitted):
        responses[row, : len(ids)] = torch.from_numpy(ids)
        mask[row, : len(ids)] = True
    rewards = torch.zeros(mask.shape)
    table = key_token_table(rewards, mask, responses, [0] * len(fitted), is_correct=correct, config=method.config)
    known, value = table.token_id.numpy(), method.value(table).numpy()
    means = []
    for ids in held_out:
        at = np.searchsorted(known, ids).clip(max=len(known) - 1)
        means.append(float(np.where(known[at] == ids, value[at], 0.0).mean()) if len(ids) else 0.0)
    return means


def interval(values: np.ndarray, generator: np.random.Generator) -> tuple[float, float]:
    """95 % of the means of groups drawn anew."""
    means = generator.choice(values, (RESAMPLES, len(values))).mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def measure(groups: list[Group], most_pairs: int, generator: np.random.Generator) -> Iterator[dict[str, object]]:
    """A row of the table for each method, and for the controls."""
    pairs = [held_out_pairs(group, most_pairs, generator) for group in groups]
    shuffled = [Group(group.rollouts, generator.permutation(group.correct)) for group in groups]
    shuffled_pairs = [held_out_pairs(group, most_pairs, generator) for group in shuffled]
    arms = {label: [auc(g, method, p) for g, p in zip(groups, pairs, strict=True)] for label, method in METHODS.items()}
    arms["shorter (control)"] = [
        float(np.mean([np.sign(len(g.rollouts[j]) - len(g.rollouts[i])) / 2 + 0.5 for i, j in p]))
        for g, p in zip(groups, pairs, strict=True)
    ]
    arms["published, outcomes shuffled (control)"] = [
        auc(g, METHODS["published"], p) for g, p in zip(shuffled, shuffled_pairs, strict=True)
    ]
    for label, values in arms.items():
        numbers = (float(np.mean(values)), *interval(np.array(values), generator))
        auc_low_high = dict(zip(("auc", "low", "high"), (f"{number:.3f}" for number in numbers), strict=True))
        yield {"method": label, "groups": len(groups), **auc_low_high}


def usable(group: Group) -> bool:
    """Whether both outcomes are left when one of each is held out."""
    return min(group.correct.sum(), (~group.correct).sum()) >= 2


def table(rows: list[dict[str, object]]) -> Iterator[str]:
    """Markdown: a line for each method, a column for each data set and part."""
    columns = list(dict.fromkeys((row["data"], row["part"]) for row in rows))
    yield "| method | " + " | ".join(f"{data}, {part}" for data, part in columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = {(row["data"], row["part"]): row for row in rows if row["method"] == method}
        shown = [f"{cells[c]['auc']} ({cells[c]['low']} to {cells[c]['high']})" for c in columns]
        yield f"| {method} | " + " | ".join(shown) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the numbers there")
    parser.add_argument("--groups", type=int, help="of each data set at most")
    parser.add_argument("--pairs", type=int, default=100, help="of a group at most")
    arguments = parser.parse_args()
    rows = []
    for name, read in DATASETS.items():
        groups = list(itertools.islice(filter(usable, read()), arguments.groups))
        for part, share in PARTS.items():
            cut = [Group([ids[: int(len(ids) * share)] for ids in group.rollouts], group.correct) for group in groups]
            rows += [
                {"data": name, "part": part, **row} for row in measure(cut, arguments.pairs, np.random.default_rng(0))
            ]
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main()
