"""Tokens, statistics of a group, and what chance gives."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from ktae import KTAEConfig, key_token_table
from ktae.report import analysis
from ktae.report.analysis import PERMUTATIONS, analyse
from ktae.report.rollouts import FormatError, Group, Rollout
from ktae.report.summary import Summary
from ktae.report.tokens import load_tokenizer, tokens_of, unit

TEXTS = ["so x = 6.", "So it is 6!", "it is 8.", "so x = 8."]


def group(texts=TEXTS, correct=(True, True, False, False)):
    return Group("g", "?", None, [Rollout(c, text) for text, c in zip(texts, correct, strict=True)])


def of_ids(*ids, correct):
    return Group("g", "?", None, [Rollout(c, token_ids=i) for i, c in zip(ids, correct, strict=True)])


@pytest.fixture
def tokenizer(tmp_path):
    vocabulary = {character: i for i, character in enumerate("abc⁂")}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("text", ["so x = 6.", "  two\n\nlines ", "日本 \u202e", "", " ", "a'b\t"])
def test_words_add_up_to_the_text(text):
    tokens = tokens_of(group([text], [True]), None)
    assert "".join(tokens.texts[0]) == text
    assert len(tokens.ids[0]) == len(tokens.texts[0])


def test_white_space_does_not_tell_words_apart():
    tokens = tokens_of(group(["so so\nso So"], [True]), None)
    assert tokens.ids[0] == [0, 0, 0, 1]


def test_text_with_a_tokenizer(tokenizer):
    tokens = tokens_of(group(["abca"], [True]), tokenizer)
    assert tokens.ids == [[0, 1, 2, 0]]
    assert tokens.texts == [["a", "b", "c", "a"]]
    assert unit(group(), tokenizer) == "text, tokenised again with the tokenizer"
    assert unit(group(), None) == "words"


def test_ids_with_and_without_a_tokenizer(tokenizer):
    ids = of_ids([0, 2, 9], correct=[True])
    assert tokens_of(ids, tokenizer).texts == [["a", "c", "⟨9⟩"]]
    assert tokens_of(ids, None).texts == [["⟨0⟩", "⟨2⟩", "⟨9⟩"]]
    assert unit(ids, None) == "token ids"


def test_a_tokenizer_that_is_none(tmp_path):
    with pytest.raises(FormatError, match=r"there is no tokenizer.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FormatError, match="--tokenizer"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("at_once", [1, 40, 1 << 20])
def test_table_and_chance(monkeypatch, at_once):
    monkeypatch.setattr(analysis, "TOKENS_AT_ONCE", at_once)
    ids = ([5, 7, 7], [5], [6, 7], [6, 6])
    correct = [True, True, False, False]
    result = analyse(of_ids(*ids, correct=correct), None, KTAEConfig(), np.random.default_rng(0))
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]])
    responses = torch.tensor([[5, 7, 7], [5, 0, 0], [6, 7, 0], [6, 6, 0]])

    def values(outcome):
        table = key_token_table(torch.zeros(4, 3), mask, responses, [0] * 4, is_correct=outcome)
        return table.key_token_value.numpy()

    assert result.table.token_id.tolist() == [5, 6, 7]
    assert result.occurrences.tolist() == [2, 3, 3]
    assert np.array_equal(result.table.key_token_value, values(correct))
    assert len(result.shuffles) == PERMUTATIONS
    assert np.array_equal(result.chance, np.concatenate([values(outcome) for outcome in result.shuffles]))
    assert {tuple(outcome) for outcome in result.shuffles} > {tuple(correct)}
    assert all(outcome.sum() == 2 for outcome in result.shuffles)


def test_one_sided_and_empty_groups():
    for texts, correct in ((TEXTS, [True] * 4), (["", ""], [True, False]), (["a"], [False])):
        result = analyse(group(texts, correct), None, KTAEConfig(), np.random.default_rng(0))
        assert (result.table.key_token_value == 0).all()
    assert not result.mixed
    assert len(result.chance) == 0


def test_summary_by_hand():
    summary = Summary(scale=1.0)
    generator = np.random.default_rng(0)
    summary.add(analyse(group(), None, KTAEConfig(), generator))
    summary.add(analyse(group(["a", "b c"], [True, True]), None, KTAEConfig(), generator))
    figures = summary.figures()
    assert figures["groups"] == 2
    assert figures["mixed_group_share"] == 0.5
    assert figures["group_sizes"] == {"2": 1, "4": 1}
    assert figures["mean_length_correct"] == (5 + 5 + 1 + 2) / 4
    assert figures["mean_length_incorrect"] == (4 + 5) / 2
    assert figures["abs_length_difference"] == 0.5
    positive, negative = summary.top(1)
    assert (positive, negative) == (["6"], ["8"])


def test_chance_is_below_what_is_there_and_near_it_where_nothing_is():
    generator = np.random.default_rng(0)
    signal, noise = Summary(1.0), Summary(1.0)
    for _ in range(20):
        correct = [True, False] * 4
        texts = [f"{'yes' if c else 'no'} {' '.join(map(str, generator.integers(0, 9, 12)))}" for c in correct]
        signal.add(analyse(group(texts, correct), None, KTAEConfig(), generator))
        noise.add(analyse(group(texts, generator.permutation(correct).tolist()), None, KTAEConfig(), generator))
    assert signal.figures()["mean_abs_value"] > 1.3 * signal.figures()["mean_abs_value_by_chance"]
    assert noise.figures()["mean_abs_value"] < 1.3 * noise.figures()["mean_abs_value_by_chance"]
