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
    lines = [row("p", "a", 1.0, gts="1"), row("q", "b", 0.0), row("p", "c", -1.0), row("q", "d", 0.1, acc=False)]
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


@pytest.mark.parametrize("value", [True, 1, 1.0, "True", "true", "1.0"])
def test_values_that_numpy_wrote_as_text(tmp_path, value):
    found, _ = groups(write(tmp_path / "1.jsonl", row("p", "a", 0.0, acc=value), row("p", "b", 1.0, acc="False")))
    assert [rollout.correct for rollout in found[0].rollouts] == [True, False]


def test_label_and_threshold(tmp_path):
    path = write(tmp_path / "1.jsonl", row("p", "a", 0.4, good=1), row("p", "b", 0.6, good=0))
    assert [rollout.correct for rollout in groups(path, threshold=0.5)[0][0].rollouts] == [False, True]
    assert [rollout.correct for rollout in groups(path, key="good")[0][0].rollouts] == [True, False]


def test_broken_lines_are_skipped_and_counted(tmp_path):
    bad = [
        "{broken\n",
        "[1]\n",
        row("p", "a", None),
        row("p", 3, 1.0),
        {"input": "p", "score": 1},
        row("p", "x", "nan"),
    ]
    found, skipped = groups(write(tmp_path / "1.jsonl", row("p", "a", 1), "\n", *bad, row("p", "b", 0)))
    assert [rollout.text for rollout in found[0].rollouts] == ["a", "b"]
    assert skipped.count == 6
    assert "line 3: no JSON" in skipped.examples[0]
    assert "line 4: a list, not an object" in skipped.examples[1]
    assert "line 5: None is no number" in skipped.examples[2]
    assert "line 6: output is not a text" in skipped.examples[3]
    assert "line 7: no 'output'" in skipped.examples[4]


def test_a_group_a_line(tmp_path):
    lines = [
        {"problem_id": "x", "prompt": "?", "responses": ["a", "b"], "correct": [True, False]},
        {"prompt": "!", "responses": ["a"], "correct": [1, 0]},
    ]
    found, skipped = groups(write(tmp_path / "g.jsonl", *lines))
    assert [(group.label, group.prompt) for group in found] == [("x", "?")]
    assert found[0].rollouts == [Rollout(True, "a"), Rollout(False, "b")]
    assert "line 2: 1 responses, which have to be texts, and 2 outcomes" in skipped.examples[0]


IDS = {
    "uid": ["p", "q", "p"],
    "responses": [[5, 6, 7], [5, 5, 0], [6, 0, 0]],
    "response_mask": [[1, 0, 1], [1, 1, 0], [1, 0, 0]],
    "rewards": [1.0, 0.0, -1.0],
}


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_ids_and_masks(tmp_path, suffix):
    path = tmp_path / f"step_12.{suffix}"
    if suffix == "npz":
        np.savez(path, **{name: np.array(values) for name, values in IDS.items()})
    else:
        pyarrow.parquet.write_table(pyarrow.table(IDS), path)
    found, _ = groups(path)
    assert [(group.label, group.step) for group in found] == [("p", 12), ("q", 12)]
    assert found[0].rollouts == [Rollout(True, token_ids=[5, 7]), Rollout(False, token_ids=[6])]


def test_the_rows_of_a_session_are_one_rollout(tmp_path):
    columns = IDS | {"uid": ["p", "p", "p"], "rollout_index": ["s", "t", "s"]}
    np.savez(tmp_path / "a.npz", **{name: np.array(values) for name, values in columns.items()})
    found, _ = groups(tmp_path / "a.npz")
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


def test_a_directory_of_steps_in_their_order(tmp_path):
    for name in ("10.jsonl", "9.jsonl", "notes.txt", "last.jsonl"):
        write(tmp_path / name, row("p", "a", 1))
    assert [path.name for path in files(tmp_path)] == ["9.jsonl", "10.jsonl", "last.jsonl"]


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
    with pytest.raises(FormatError, match="has no outcome: correct, is_correct, acc, rewards or score"):
        groups(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", rewards=np.zeros(1))
    with pytest.raises(FormatError, match="has no column responses, response_mask, uid"):
        groups(tmp_path / "a.npz")


def test_nothing_there(tmp_path):
    with pytest.raises(FormatError, match="does not exist"):
        files(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="has no file of rollouts"):
        files(tmp_path)
