"""examples/study: its statistics against brute force, and that it runs."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

STUDY = Path(__file__).resolve().parents[1] / "examples" / "study"
sys.path.insert(0, str(STUDY))
import held_out  # noqa: E402


@pytest.mark.parametrize("method", [name for name in held_out.METHODS if name != "no information gain"])
def test_tokens_that_tell_are_found_and_others_are_chance(method):
    generator = np.random.default_rng(0)
    correct = np.arange(8) % 2 == 0
    noise = [generator.integers(100, 103, 30) for _ in correct]
    telling = [np.concatenate([ids, [int(right)] * 15]) for ids, right in zip(noise, correct, strict=True)]
    pairs = held_out.held_out_pairs(held_out.Group(telling, correct), 99, generator)
    assert len(pairs) == 16
    assert held_out.auc(held_out.Group(telling, correct), held_out.METHODS[method], pairs) == 1
    same = [noise[0]] * 8
    assert held_out.auc(held_out.Group(same, correct), held_out.METHODS[method], pairs) == 0.5


def test_the_page_has_the_numbers_of_the_file():
    page = (STUDY.parents[1] / "docs" / "results.md").read_text()
    with (STUDY / "results" / "held_out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(held_out.DATASETS) * len(held_out.PARTS) * (len(held_out.METHODS) + 2)
    for method in {row["method"] for row in rows}:
        cells = [f"{row['auc']} ({row['low']} to {row['high']})" for row in rows if row["method"] == method]
        assert f"| {method} | {' | '.join(cells)} |" in page


def test_ngrams():
    first, second = held_out.ngrams([np.array([5, 6, 5, 6]), np.array([6, 5, 6])], 2)
    assert first[1] == first[3] == second[2]
    assert len({*first.tolist(), *second.tolist()}) == 4  # 5, 56, 65 and 6


def test_it_runs(tmp_path):
    command = [sys.executable, str(STUDY / "held_out.py"), "--groups", "1", "--pairs", "5"]
    command += ["--csv", str(tmp_path / "held_out.csv")]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "| published | " in process.stdout
    rows = (tmp_path / "held_out.csv").read_text().splitlines()
    assert len(rows) == 1 + len(held_out.DATASETS) * len(held_out.PARTS) * (len(held_out.METHODS) + 2)
