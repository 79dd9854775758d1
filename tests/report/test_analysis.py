"""Tokens, statistics of a group, and what chance gives."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

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


UNUSUAL = [
    "a 👩 b",
    "é ü ñ",
    "日本語 text",
    "  two   spaces\n\n\ttab ",
    "👩‍🚀🏽",
    "e\u0301 \ufffd",
    "",
    " ",
    "the 👩the",
]


@pytest.mark.parametrize("text", [*UNUSUAL, "".join(UNUSUAL)])
@pytest.mark.parametrize("trim", [True, False])
def test_the_pieces_of_a_tokenizer_add_up_to_the_text(byte_level, text, trim):
    byte_level.post_processor = processors.ByteLevel(trim_offsets=trim)
    tokens = tokens_of(group([text], [True]), byte_level)
    assert "".join(tokens.texts[0]) == text
    assert len(tokens.texts[0]) == len(tokens.ids[0])
    assert tokens.ids[0] == byte_level.encode(text).ids


@given(st.text(st.sampled_from("ab é👩\u200d日\n\t.́"), max_size=30))
def test_the_pieces_of_any_text_add_up_to_it(byte_level, text):
    assert "".join(tokens_of(group([text], [True]), byte_level).texts[0]) == text


def test_white_space_and_rests_that_a_tokenizer_drops_are_shown():
    tokenizer = Tokenizer(models.WordLevel({"so": 0, "x": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = tokens_of(group([" so  x\n日本 "], [True]), tokenizer)
    assert tokens.texts == [[" so", "  x", "\n日本 "]]
    assert tokens.names == {0: "so", 1: "x", 2: "?"}


def test_tokens_that_differ_in_white_space_or_are_parts_of_characters_have_their_own_names(byte_level):
    tokens = tokens_of(group(["the the 👩"], [True]), byte_level)
    assert {"the", " the"} <= set(tokens.names.values())
    assert len(set(tokens.names.values())) == len(tokens.names) == len(set(tokens.ids[0]))
    metaspace = Tokenizer(models.WordLevel({"▁so": 0, "so": 1, "?": 2}, unk_token="?"))
    metaspace.decoder = decoders.Metaspace()
    assert tokens_of(of_ids([0, 1], correct=[True]), metaspace).texts == [[" so", "so"]]


def test_truncation_and_padding_of_the_file_are_not_used(tmp_path, byte_level):
    limited = Tokenizer.from_str(byte_level.to_str())
    limited.enable_truncation(3)
    limited.enable_padding(length=8)
    limited.save(str(tmp_path / "tokenizer.json"))
    tokens = tokens_of(group(["so the answer", "x"], [True, False]), load_tokenizer(str(tmp_path)))
    assert [len(ids) for ids in tokens.ids] == [len(byte_level.encode(text).ids) for text in ("so the answer", "x")]


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


def test_mean_lengths_by_chance_keep_the_lengths_of_each_prompt():
    summary = Summary(scale=1.0)
    groups = [group(["a b c", "a b c", "a", "a"]), group(["a"] * 5, [True] * 5)]
    for number in range(50):
        summary.add(analyse(groups[number % 2], None, KTAEConfig(), np.random.default_rng(number)))
    figures = summary.figures()
    assert figures["mean_length_correct"] == (2 * 3 + 5) / 7
    assert figures["mean_length_correct_by_chance"] == pytest.approx((2 * 2 + 5) / 7, abs=0.05)
    assert (figures["mean_length_incorrect"], figures["mean_length_incorrect_by_chance"]) == (
        1,
        pytest.approx(2, abs=0.1),
    )


def test_a_token_over_groups_has_the_table_of_the_group_where_it_is_strongest():
    summary = Summary(scale=1.0)
    groups = [
        Group("weak", "", 1, group(["so x", "x", "x", "x"]).rollouts),
        Group("strong", "", 2, group(["so", "so", "x", "x"]).rollouts),
        Group("against", "", 3, group(["x", "x", "so x", "x"]).rollouts),
    ]
    analyses = [analyse(g, None, KTAEConfig(), np.random.default_rng(0)) for g in groups]
    for result in analyses:
        summary.add(result)
    values = [
        float(result.table.key_token_value[list(result.tokens.names.values()).index("so")]) for result in analyses
    ]
    token = summary.token["so"]
    assert (token.groups, token.value) == (3, pytest.approx(sum(values)))
    assert summary.top(1)[0] == ["so"]
    record = token.strongest.record()
    assert (record["group"], record["step"]) == ("strong", 2)
    assert [record[name] for name in "abcd"] == [2, 0, 0, 2]
    assert record["p_value"] == pytest.approx(1 / 3)
    assert record["key_token_value"] == values[1]


def test_tokens_with_and_without_a_space_are_kept_apart_in_the_summary(byte_level):
    summary = Summary(scale=1.0)
    texts = ["the sum", "the sum", "sum the", "sum the"]
    summary.add(analyse(group(texts), byte_level, KTAEConfig(), np.random.default_rng(0)))
    assert "the" in summary.top(9)[0]
    assert " the" in summary.top(9)[1]


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
