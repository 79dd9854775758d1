"""`+algorithm.ktae.dump_dir`: what training used, on disk."""

import json

import numpy as np
import pytest
import torch
from protos import compute, data_proto

from ktae import KTAEConfig
from ktae.integrations.verl import side_dump


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    monkeypatch.setattr(side_dump, "counter", side_dump.Counter())


def test_the_ids_and_advantages_that_training_used(tmp_path):
    data, batch = data_proto()
    actual = compute(data, ktae={"dump_dir": str(tmp_path / "new"), "dump_groups": 2}).batch["advantages"]
    with np.load(tmp_path / "new" / "step_000001.npz") as file:
        dumped = dict(file)
    rows = [row for row, uid in enumerate(batch["index"]) if uid in ("prompt-0", "prompt-1")]
    assert dumped["uid"].tolist() == [batch["index"][row] for row in rows]
    assert np.array_equal(dumped["responses"], batch["responses"][rows])
    assert np.array_equal(dumped["response_mask"], batch["response_mask"][rows].bool())
    assert np.array_equal(dumped["advantages"], actual[rows].float())
    assert dumped["correct"].tolist() == (batch["token_level_rewards"][rows].sum(1) > 0).tolist()
    assert KTAEConfig(**json.loads(str(dumped["config"]))) == KTAEConfig()


def test_the_settings_and_the_step_it_is_from(tmp_path):
    data, batch = data_proto()
    one_sided = [row for row, uid in enumerate(batch["index"]) if uid == "prompt-2"]
    data.batch["token_level_scores"][one_sided] = 0
    settings = {"scale": 0.5, "ignore_token_ids": [3, 4]}
    compute(data, ktae={"dump_dir": str(tmp_path), "dump_groups": 1, **settings})
    with np.load(tmp_path / "step_000001.npz") as file:
        assert KTAEConfig(**json.loads(str(file["config"]))) == KTAEConfig(scale=0.5, ignore_token_ids=(3, 4))
        outcomes = {}
        for uid, score in zip(batch["index"], data.batch["token_level_scores"].sum(1).tolist(), strict=True):
            outcomes.setdefault(uid, set()).add(score > 0)
        mixed = [len(labels) == 2 for labels in outcomes.values()]
        assert file["mixed_group_share"] == sum(mixed) / len(mixed)


def test_every_few_steps_and_on_after_a_restart(tmp_path, monkeypatch):
    for _ in range(5):
        compute(data_proto()[0], ktae={"dump_dir": str(tmp_path), "dump_every": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_00000{step}.npz" for step in (1, 3, 5)]
    monkeypatch.setattr(side_dump, "counter", side_dump.Counter())
    compute(data_proto()[0], ktae={"dump_dir": str(tmp_path), "dump_every": 1})
    assert (tmp_path / "step_000006.npz").exists()


def test_groups_with_both_outcomes_come_first(tmp_path):
    data, batch = data_proto()
    scores = data.batch["token_level_scores"].clone()
    scores[[row for row, uid in enumerate(batch["index"]) if uid != "prompt-3"]] = 0
    data.batch["token_level_scores"] = data.batch["token_level_rewards"] = scores
    compute(data, ktae={"dump_dir": str(tmp_path), "dump_groups": 1})
    with np.load(tmp_path / "step_000001.npz") as file:
        assert set(file["uid"].tolist()) == {"prompt-3"}


def test_an_agents_session_has_the_outcome_of_its_last_row():
    index, sessions, correct = ["a", "a", "b", "b"], ["s", "s", "s", "t"], [False, True, False, True]
    assert side_dump._rows(index, sessions, correct, groups=1) == [2, 3]


def test_uids_that_look_alike_stay_apart():
    assert side_dump._texts([1, "1", 1]) == ["1", "'1'", "1"]
    assert side_dump._texts([1, 2, "a"]) == ["1", "2", "a"]
    assert side_dump._texts([1, 1.0, "a"]) == ["1", "1", "a"]
    assert side_dump._texts([True, 1, "1"]) == ["True", "True", "1"]


def test_a_directory_that_cannot_be_listed_does_not_stop_the_training(tmp_path, monkeypatch, caplog):
    def broken(*_):
        raise OSError("Stale file handle")

    monkeypatch.setattr(side_dump.Counter, "next", broken)
    expected = compute(data_proto()[0]).batch["advantages"]
    assert torch.equal(compute(data_proto()[0], ktae={"dump_dir": str(tmp_path)}).batch["advantages"], expected)
    assert "training goes on without it" in caplog.text


def test_a_full_disk_does_not_stop_the_training(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    data, _ = data_proto()
    expected = compute(data_proto()[0]).batch["advantages"]
    assert torch.equal(compute(data, ktae={"dump_dir": str(tmp_path / "file")}).batch["advantages"], expected)
    assert "training goes on without it" in caplog.text


def test_a_disk_that_fills_up_leaves_no_fragment(tmp_path, monkeypatch, caplog):
    def full(file, **_):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    compute(data_proto()[0], ktae={"dump_dir": str(tmp_path)})
    assert "training goes on without it" in caplog.text
    assert list(tmp_path.iterdir()) == []
