"""Files of rollouts in every format -> groups."""

import gzip
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from ktae.report.rollouts import FormatError, Labels, Rollout, Skipped, files, read
from ktae.report.tokens import tokens_of


def write(path, *lines):
    content = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def groups(path, **labels):
    skipped = Skipped()
    return list(read(path, Labels(**labels), skipped)), skipped


def row(prompt, output, score, **more):
    return {"input": prompt, "output": output, "score": score, "step": 7, **more}


@pytest.mark.parametrize("name", ["7.jsonl", "7.jsonl.gz"])
def test_a_dump_of_verl_before_0_9(tmp_path, name):
    """No uid; the rows of a prompt stand anywhere; acc wins over the score."""
    lines = [row("p", "a", 1.0), row("q", "b", 0.0), row("p", "c", -1.0), row("q", "d", 0.1, acc=False)]
    found, skipped = groups(write(tmp_path / name, *lines))
    assert skipped.count == 0
    assert [(group.prompt, group.step) for group in found] == [("p", 7), ("q", 7)]
    assert found[0].rollouts == [Rollout(True, "a"), Rollout(False, "c")]
    assert found[1].rollouts == [Rollout(False, "b"), Rollout(False, "d")]


def test_a_dump_of_v1(tmp_path):
    """uid is the whole key, padding rows are possible, and two prompts may have the same text."""
    lines = [row("p", str(i), i, uid=f"u_{i // 2}_{i % 2}_0") for i in range(4)]
    lines += [row("p", "other", 1.0, uid="v_0_0"), row("", "", 0.0, uid="pad1f_0_0")]
    found, _ = groups(write(tmp_path / "7.jsonl", *lines))
    assert [group.label for group in found] == ["u_0", "u_1", "v"]


def test_the_rows_of_a_session_in_a_dump_of_v1_are_one_rollout(tmp_path):
    """In the order of their outputs; the last one's score."""
    keys = {"u_0_1": 1.0, "u_0_0": 0.0, "u_1_0": 0.0, "u_0_10": -1.0}
    found, _ = groups(write(tmp_path / "7.jsonl", *(row("p", key, score, uid=key) for key, score in keys.items())))
    assert found[0].rollouts == [Rollout(False, "u_0_0\nu_0_1\nu_0_10"), Rollout(False, "u_1_0")]


def test_uids_that_are_not_v1s(tmp_path):
    uids = ["my_prompt", "my_other_x", "paddle_0_0", "paddle_1_0", "my_prompt", 7]
    found, _ = groups(write(tmp_path / "7.jsonl", *(row("p", "a", 0.0, uid=uid) for uid in uids)))
    assert {group.label: len(group.rollouts) for group in found} == {
        "my_prompt": 2,
        "my_other_x": 1,
        "paddle": 2,
        "7": 1,
    }


def test_uids_that_end_in_two_numbers_but_are_not_v1s(tmp_path):
    lines = [row("p", "a", i % 2, uid=f"aime_2024_{i // 4}") for i in range(8)]
    found, _ = groups(write(tmp_path / "7.jsonl", *lines))
    assert {group.label: len(group.rollouts) for group in found} == {"aime_2024_0": 4, "aime_2024_1": 4}
    assert [rollout.correct for rollout in found[1].rollouts] == [False, True, False, True]


def test_prompts_of_one_text_and_different_truths_are_two(tmp_path):
    lines = [row("How many?", "3", 1.0, gts="3"), row("How many?", "3", 0.0, gts="7")]
    found, _ = groups(write(tmp_path / "7.jsonl", *lines))
    assert [len(group.rollouts) for group in found] == [1, 1]


def test_messages_instead_of_a_text(tmp_path):
    messages = [{"role": "user", "content": "2 + 2?"}]
    found, _ = groups(write(tmp_path / "7.jsonl", row(messages, "4", 1.0), row(messages, "\ud83d\ude00 \ud800", 0.0)))
    assert found[0].prompt == '[{"role": "user", "content": "2 + 2?"}]'
    assert found[0].rollouts[1].text == "\U0001f600 \ufffd"


@pytest.mark.parametrize(("step", "read_as"), [("1", 1), (1.0, 1), (None, 7)])
def test_steps(tmp_path, step, read_as):
    found, _ = groups(write(tmp_path / "7.jsonl", {"input": "p", "output": "a", "score": 1, "step": step}))
    assert [group.step for group in found] == [read_as]


@pytest.mark.parametrize("value", [True, 1, 1.0, "True", "true", "1.0"])
def test_values_that_numpy_wrote_as_text(tmp_path, value):
    found, _ = groups(write(tmp_path / "1.jsonl", row("p", "a", 0.0, acc=value), row("p", "b", 1.0, acc="False")))
    assert [rollout.correct for rollout in found[0].rollouts] == [True, False]


def test_label_and_threshold(tmp_path):
    path = write(tmp_path / "1.jsonl", row("p", "a", 0.4, good=1), row("p", "b", 0.6, good=0))
    assert [rollout.correct for rollout in groups(path, threshold=0.5)[0][0].rollouts] == [False, True]
    assert [rollout.correct for rollout in groups(path, key="good")[0][0].rollouts] == [True, False]


def test_broken_lines_are_skipped_and_counted(tmp_path, monkeypatch):
    bad = {
        "{broken\n": "no JSON",
        "[1]\n": "a list, not an object",
        "[" * 100_000 + "\n": "no JSON",
        json.dumps(row("p", "a", None)) + "\n": "no acc or score",
        json.dumps(row("p", 3, 1.0)) + "\n": "output is not a text",
        json.dumps({"input": "p", "score": 1}) + "\n": "no output",
        json.dumps({"output": "p", "score": 1}) + "\n": "no input",
        json.dumps(row("p", "x", "nan")) + "\n": "the outcome is NaN",
        json.dumps(row("p", "x", [1])) + "\n": "[1] is no number",
        json.dumps(row("p", "x", 1, acc="yes")) + "\n": "'yes' is no number",
        json.dumps(row("p", "x", 10**400)) + "\n": "is no number",
        json.dumps(row("p", "x", 1) | {"step": 1.5}) + "\n": "the step is 1.5",
        json.dumps(row("p", "x", 1) | {"step": [7]}) + "\n": "[7] is no number",
        json.dumps(row("p", "x", 1) | {"step": float("nan")}) + "\n": "the step is nan",
        json.dumps(row("p", "x", 1) | {"step": float("inf")}) + "\n": "the step is inf",
    }
    monkeypatch.setattr("ktae.report.rollouts.SHOWN", 99)
    found, skipped = groups(write(tmp_path / "1.jsonl", row("p", "a", 1), "\n", *bad, row("p", "b", 0)))
    assert [rollout.text for rollout in found[0].rollouts] == ["a", "b"]
    assert skipped.count == len(bad)
    for number, (reason, example) in enumerate(zip(bad.values(), skipped.examples, strict=True), start=3):
        assert f"line {number}: " in example
        assert reason in example


@pytest.mark.parametrize("labels", [{"key": "good", "threshold": 0.5}, {"threshold": 0.5}])
@pytest.mark.parametrize("suffix", ["jsonl", "npz", "parquet"])
def test_key_and_threshold_hold_in_every_format(tmp_path, suffix, labels):
    values = {"correct": [0.4, 0.6], "good": [0.9, 0.1]}
    path = tmp_path / f"a.{suffix}"
    columns = {"uid": ["p", "p"], "responses": [[5, 6], [6, 7]], "response_mask": [[1, 1], [1, 1]], **values}
    if suffix == "jsonl":
        write(path, {"responses": ["a", "b"], **values})
    elif suffix == "npz":
        np.savez(path, **{name: np.array(column) for name, column in columns.items()})
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    correct = [rollout.correct for rollout in groups(path, **labels)[0][0].rollouts]
    assert correct == ([True, False] if "key" in labels else [False, True])


def test_a_key_that_is_not_there_is_not_replaced_by_the_score(tmp_path):
    found, skipped = groups(write(tmp_path / "1.jsonl", row("p", "a", 1.0)), key="nosuch")
    assert found == []
    assert skipped.examples[0].endswith("line 1: no nosuch")
    with pytest.raises(FormatError, match="has no column nosuch"):
        groups(save(tmp_path, IDS), key="nosuch")


def test_a_gzip_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path):
    path = write(tmp_path / "1.jsonl.gz", *(row("p", str(np.random.default_rng(i).random(9)), 1.0) for i in range(999)))
    path.write_bytes(path.read_bytes()[:-5000])
    found, skipped = groups(path)
    assert 99 < len(found[0].rollouts) < 999
    assert any("the end: Compressed file ended" in example for example in skipped.examples)
    path.write_text("no gzip")
    with pytest.raises(FormatError, match="is no gzip file"):
        groups(path)


def test_the_first_line_may_be_of_another_kind(tmp_path):
    found, skipped = groups(write(tmp_path / "1.jsonl", {"note": "hello"}, row("p", "a", 1.0)))
    assert [rollout.text for rollout in found[0].rollouts] == ["a"]
    assert skipped.count == 1


def test_a_group_a_line(tmp_path):
    lines = [
        {"problem_id": "x", "prompt": "?", "responses": ["a", "b"], "correct": [True, False]},
        {"prompt": "!", "responses": ["a"], "correct": [1, 0]},
    ]
    found, skipped = groups(write(tmp_path / "g.jsonl", *lines))
    assert [(group.label, group.prompt) for group in found] == [("x", "?")]
    assert found[0].rollouts == [Rollout(True, "a"), Rollout(False, "b")]
    assert "line 2: 1 responses and, of outcomes, [1, 0]" in skipped.examples[0]


IDS = {
    "uid": ["p", "q", "p"],
    "responses": [[5, 6, 7], [5, 5, 0], [6, 0, 0]],
    "response_mask": [[1, 0, 1], [1, 1, 0], [1, 0, 0]],
    "rewards": [1.0, 0.0, -1.0],
}


def save(directory, columns, suffix="npz"):
    path = directory / f"step_12.{suffix}"
    if suffix == "npz":
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_ids_and_masks(tmp_path, suffix):
    found, _ = groups(save(tmp_path, IDS, suffix))
    assert [(group.label, group.step) for group in found] == [("p", 12), ("q", 12)]
    assert found[0].rollouts == [Rollout(True, token_ids=[5, 7]), Rollout(False, token_ids=[6])]


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_the_rows_of_a_session_are_one_rollout(tmp_path, suffix):
    found, _ = groups(save(tmp_path, IDS | {"uid": ["p", "p", "p"], "rollout_index": ["s", "t", "s"]}, suffix))
    assert found[0].rollouts == [Rollout(False, token_ids=[5, 7, 6]), Rollout(False, token_ids=[5, 5])]


def test_texts_of_ids(tmp_path):
    columns = {name: np.array(values) for name, values in IDS.items()}
    np.savez(tmp_path / "a.npz", **columns, token_id=[5, 6], token_text=[" five", " six"])
    found, _ = groups(tmp_path / "a.npz")
    assert found[0].token_text == {5: " five", 6: " six"}
    assert tokens_of(found[0], None).texts == [[" five", "⟨7⟩"], [" six"]]


def test_texts_in_parquet(tmp_path):
    columns = {"uid": [1, 1], "responses": ["a b", "c"], "correct": [True, False], "prompt": ["?", "?"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    found, _ = groups(tmp_path / "a.parquet")
    assert (found[0].prompt, found[0].rollouts[0]) == ("?", Rollout(True, "a b"))


def test_of_parquet_only_the_columns_that_are_documented(tmp_path):
    messages = [[{"role": "user", "content": "2 + 2?"}], [{"role": "user", "content": "2 + 2?"}]]
    columns = {"uid": [1, 1], "responses": [[5], [6]], "correct": [True, False], "prompt": messages}
    path = save(
        tmp_path, columns | {"config": ["mine", "mine"], "token_id": ["x", "y"], "token_text": [1, 2]}, "parquet"
    )
    found, _ = groups(path)
    assert found[0].prompt == '[{"role": "user", "content": "2 + 2?"}]'
    assert found[0].config is None
    assert found[0].token_text == {}


def test_a_directory_of_steps_in_their_order(tmp_path):
    for name in ("global_step_10.jsonl", "9.jsonl", "notes.txt", "last.jsonl"):
        write(tmp_path / name, row("p", "a", 1))
    (tmp_path / "directory.npz").mkdir()
    assert [path.name for path in files(tmp_path)] == ["9.jsonl", "global_step_10.jsonl", "last.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "x", "an unknown format. Known: .jsonl"),
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", "\n{broken\n", "has no line that is a JSON object"),
        ("a.jsonl", '{"text": 1}\n', r"The first line has the keys \['text'\]"),
        ("a.npz", "no zip", "is no npz file of arrays"),
        ("a.parquet", "no parquet", "is no parquet file"),
    ],
)
def test_no_file_of_rollouts(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(FormatError, match=message):
        groups(path)


def test_missing_columns(tmp_path):
    np.savez(tmp_path / "a.npz", responses=np.zeros((1, 1)), uid=np.zeros(1), response_mask=np.ones((1, 1)))
    with pytest.raises(FormatError, match="has no column correct or is_correct or acc or rewards or score"):
        groups(tmp_path / "a.npz")
    save(tmp_path, {name: values for name, values in IDS.items() if name != "response_mask"})
    with pytest.raises(FormatError, match="has no column response_mask"):  # or padding would count as tokens
        groups(tmp_path / "step_12.npz")
    np.savez(tmp_path / "a.npz", rewards=np.zeros(1))
    with pytest.raises(FormatError, match=r"has no column uid. It has \['rewards'\]"):
        groups(tmp_path / "a.npz")


NAN = float("nan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [1.0, NAN, 0.0]}, "rewards of row 1 is .*nan.*: the outcome is NaN"),
        ({"rewards": [1.0, 0.0]}, "different numbers of rows"),
        ({"rewards": [[1.0, 0.0]] * 3}, "rewards of row 0 is .*: one number a row"),
        ({"rewards": ["a", "b", "c"]}, "is no number"),
        ({"rewards": 1.0}, "rewards is one value, not one a row"),
        ({"uid": ["p", "q"]}, "different numbers of rows"),
        ({"uid": "p"}, "uid is one value, not one a row"),
        ({"uid": [["p"], ["q"], ["p"]]}, "uid of row 0 is .*: a label is a text or a number"),
        ({"uid": [NAN, 1.0, 2.0]}, "uid of row 0 is nan"),
        ({"responses": [5, 6, 7]}, "responses of row 0 is not a list of integers"),
        ({"responses": [[5.0, 6.0, 7.5]] * 3}, "responses of row 0 is not a list of integers"),
        ({"responses": [[True, False, True]] * 3}, "responses of row 0 is not a list of integers"),
        ({"responses": np.full((3, 3), 1 << 63, dtype=np.uint64)}, "ids have 64 bits with a sign"),
        ({"response_mask": [[1, 1]] * 3}, "response_mask of row 0 has to be 3 times 0 or 1"),
        ({"response_mask": [[1.0, NAN, 0.0]] * 3}, "response_mask of row 0 has to be 3 times 0 or 1"),
        ({"response_mask": [[1, -1, 0]] * 3}, "response_mask of row 0 has to be 3 times 0 or 1"),
        ({"rollout_index": ["a"]}, "different numbers of rows"),
        ({"advantages": [[1.0, 2.0]] * 3}, "advantages of row 0 have to be 3 finite numbers"),
        ({"advantages": [[1.0, 2.0, NAN]] * 3}, "advantages of row 0 have to be 3 finite numbers"),
        ({"prompt": "a"}, "len\\(\\) of unsized object"),
        ({"mixed_group_share": [0.5, 0.5]}, "only"),
        ({"token_id": [5], "token_text": ["a", "b"]}, "token_text has 2 entries for 1"),
        ({"prompt_uid": ["p"], "prompt": ["a", "b"]}, "prompt has 2 entries for 1"),
        ({"config": '{"nosuch": 1}'}, "config is not one of this version"),
    ],
)
def test_columns_that_do_not_fit(tmp_path, change, message):
    with pytest.raises(FormatError, match=message):
        groups(save(tmp_path, IDS | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [1.0, None, 0.0]}, "rewards of row 1 is None: None is no number"),
        ({"response_mask": [[1, 1, 1], None, [1, 1, 1]]}, "response_mask of row 1 is not a list of numbers: None"),
        ({"responses": [[5, 6, 7], None, [5, 6, 7]]}, "responses of row 1 is not a list of integers: None"),
        ({"responses": [[5, None, 7]] * 3}, "responses of row 0 is not a list of integers"),
        ({"uid": ["p", None, "p"]}, "uid of row 1 is None"),
        ({"responses": [1, 2, 3]}, "responses of row 0 is not a list of integers"),
    ],
)
def test_parquet_with_gaps(tmp_path, change, message):
    with pytest.raises(FormatError, match=message):
        groups(save(tmp_path, IDS | change, "parquet"))


def test_nothing_there(tmp_path):
    with pytest.raises(FormatError, match="does not exist"):
        files(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="has no file of rollouts"):
        files(tmp_path)
