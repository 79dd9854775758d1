"""The V1 seam: the real `PPOTrainer._compute_advantage` on a real TransferQueue, without workers."""

import copy
import uuid
from itertools import chain

import numpy as np
import pytest
import ray
import torch
import transfer_queue as tq
from batches import advantages, make_batch
from hydra import compose, initialize_config_module
from omegaconf import open_dict
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ktae.integrations.verl.transfer_queue import _rollouts

pytestmark = pytest.mark.filterwarnings("ignore:Disabled critic as algorithm.adv_estimator")

EOS = 2

# (uid, session, output) -> token ids, mask, score, acc. Session u1_1 and u2_0 have several outputs, whose score is that
# of the last one; u2_2 called a tool, whose tokens are masked; u2_3 says nothing that is trained on.
ROWS = {
    ("u1", 0, 0): ([11, 12, 13], [1, 1, 1], 1.0, True),
    ("u1", 1, 0): ([11, 14], [1, 1], 0.0, False),
    ("u1", 1, 1): ([11, 15, 15, 16], [1, 1, 1, 1], 0.0, False),
    ("u1", 2, 0): ([17, 12], [1, 1], 1.0, True),
    ("u1", 3, 0): ([14], [1], 0.1, False),
    ("u2", 0, 0): ([21, 22], [1, 1], 1.0, True),
    ("u2", 0, 1): ([23], [1], 1.0, True),
    ("u2", 0, 2): ([24, 11, 24], [1, 1, 1], 1.0, True),
    ("u2", 1, 0): ([21, 11], [1, 1], 0.0, False),
    ("u2", 2, 0): ([22, 99, 99, 24], [1, 0, 0, 1], 0.0, False),
    ("u2", 3, 0): ([98, 97], [0, 0], 1.0, True),
    ("u3", 0, 0): ([31], [1], 0.0, False),
    ("u3", 1, 0): ([32, 31], [1, 1], 0.0, False),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                "algorithm.adv_estimator=ktae",
                "actor_rollout_ref.rollout.name=none",
                f"actor_rollout_ref.model.path={tmp_path_factory.mktemp('model')}",
                "transfer_queue.enable=True",
                "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            ],
        )
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200_000_000, log_to_driver=False)
    tq.init(config.transfer_queue)
    yield config
    tq.close()
    ray.shutdown()


@pytest.fixture
def make_trainer(config):
    """A function that constructs a trainer as `main_ppo` does."""

    def make(**algorithm):
        mine = copy.deepcopy(config)
        with open_dict(mine.algorithm):
            mine.algorithm.update(algorithm)
        return get_trainer_cls("sync")(config=mine)

    return make


def put(rows=ROWS, shuffle=True, **fields):
    """Put the rows into TransferQueue as the agent loop does, pad to a multiple of 8 as the trainer does, shuffle."""
    run = uuid.uuid4().hex
    samples, keys, tags = [], [], []
    for (uid, session, output), (ids, mask, score, acc) in rows.items():
        scores = torch.zeros(len(ids))
        scores[-1] = score
        zeros = torch.zeros(len(ids))
        samples.append(
            {
                "uid": f"{run}{uid}",
                "prompts": torch.tensor([5, 6]),
                "responses": torch.tensor(ids),
                "response_mask": torch.tensor(mask),
                "rm_scores": scores,
                "rollout_log_probs": zeros,
                "old_log_probs": zeros,
                "position_ids": torch.arange(2 + len(ids)),
                "extra_fields": {"reward_extra_info": {"acc": acc, "score": score}},
                **{name: value(ids) for name, value in fields.items()},
            }
        )
        keys.append(f"{run}{uid}_{session}_{output}")
        tags.append({"status": "success", "prompt_len": 2, "response_len": len(ids), "seq_len": 2 + len(ids)})
    batch = tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(samples), tags=tags)
    batch = upsample_batch_to_divisible_size(batch, 8, EOS)
    assert sum(tag.get("is_padding", False) for tag in batch.tags) == -len(rows) % 8
    if shuffle:
        batch.reorder(torch.randperm(len(batch.keys), generator=torch.Generator().manual_seed(0)).tolist())
    return batch


def run_step(trainer, batch):
    metrics = {}
    trainer._compute_advantage(batch, metrics)
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages", "returns"])
    rows = {}
    for key, advantage, returned in zip(batch.keys, data["advantages"].unbind(), data["returns"].unbind(), strict=True):
        assert torch.equal(advantage, returned)
        rows[parse(key)] = advantage
    return rows, metrics


def parse(key):
    """Key of a row in TransferQueue -> key of ROWS, or ("pad", ...)."""
    uid, session, output = key.rsplit("_", 2)
    return "pad" if uid.startswith("pad") else uid[32:], int(session), int(output)


def expected_rows(rows=ROWS, labels=None, base=None, **arguments):
    """The same sessions, each joined to one rollout by hand."""
    sessions = {}
    for (uid, session, _), row in sorted(rows.items(), key=lambda item: item[0]):
        sessions.setdefault((uid, session), []).append(row)
    ids = [list(chain.from_iterable(row[0] for row in session)) for session in sessions.values()]
    masks = [list(chain.from_iterable(row[1] for row in session)) for session in sessions.values()]
    scores = [session[-1][2] for session in sessions.values()]
    batch = make_batch(ids, scores, [uid for uid, _ in sessions])
    for row, mask in enumerate(masks):
        batch["response_mask"][row, : len(mask)] = torch.tensor(mask)
    if labels == "acc":
        arguments["is_correct"] = [session[-1][3] for session in sessions.values()]
    if base is not None:
        given = {name: batch[name] for name in ("token_level_rewards", "response_mask")}
        index = np.array(batch["index"], dtype=object)
        arguments["rollout_advantages"], _ = core_algos.get_adv_estimator_fn(base)(**given, index=index)
    joined = advantages(**batch, **arguments)
    expected = {}
    for row, (uid, session) in enumerate(sessions):
        start = 0
        for output, (row_ids, *_) in enumerate(sessions[uid, session]):
            expected[uid, session, output] = joined[row, start : start + len(row_ids)].float()
            start += len(row_ids)
    return expected


def assert_rows(actual, expected):
    assert {key for key in actual if key[0] != "pad"} == set(expected)
    for key, advantage in actual.items():
        if key[0] == "pad":
            assert (advantage == 0).all()
        else:
            torch.testing.assert_close(advantage, expected[key], rtol=0, atol=1e-6, msg=f"{key}: {advantage}")


@pytest.mark.parametrize("shuffle", [True, False])
def test_sessions_are_rollouts_and_padding_is_left_out(make_trainer, shuffle):
    rows, metrics = run_step(make_trainer(), put(shuffle=shuffle))
    assert_rows(rows, expected_rows())
    # The score 0.1 counts as correct, which leaves u1 with both outcomes; u3 is all incorrect.
    assert metrics["ktae/mixed_group_share"] == pytest.approx(2 / 3)
    assert metrics["ktae/single_rollout_group_share"] == 0
    assert metrics["timing_s/ktae"] > 0


def test_threshold(make_trainer):
    rows, metrics = run_step(make_trainer(ktae={"correct_threshold": 0.5}), put())
    assert_rows(rows, expected_rows(labels="acc"))
    assert metrics["ktae/mixed_group_share"] == pytest.approx(2 / 3)


def test_one_output_a_session_and_no_padding(make_trainer):
    rows = {key: row for key, row in ROWS.items() if key[2] == 0 and key[0] != "u3"}
    assert len(rows) == 8
    actual, _ = run_step(make_trainer(), put(rows, shuffle=False))
    assert_rows(actual, expected_rows(rows))


def test_correct_key_in_the_reward_extras(make_trainer):
    rows, _ = run_step(make_trainer(ktae={"correct_key": "acc"}), put())
    assert_rows(rows, expected_rows(labels="acc"))


@pytest.mark.parametrize("dtype", [bool, int, np.float32, np.float64, object])
def test_correct_key_of_a_colocated_reward_model(make_trainer, dtype):
    """Its extras become fields of their own, written as `PPOTrainer._compute_reward_colocate` does."""
    batch = put()
    values = np.arange(len(batch.keys)) % 2 == 0
    fields = tu.get_tensordict({"quality": values.astype(dtype)})
    tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)
    quality = {parse(key): bool(value) for key, value in zip(batch.keys, values, strict=True)}
    by_quality = {key: (*row[:3], quality[key]) for key, row in ROWS.items()}
    rows, _ = run_step(make_trainer(ktae={"correct_key": "quality"}), batch)
    assert_rows(rows, expected_rows(by_quality, labels="acc"))


def test_a_column_of_the_dataset_does_not_hide_a_reward_extra(make_trainer):
    rows, _ = run_step(make_trainer(ktae={"correct_key": "acc"}), put(acc=lambda ids: 0.25))  # noqa: ARG005
    assert_rows(rows, expected_rows(labels="acc"))


def test_a_tensor_is_no_label(make_trainer):
    with pytest.raises(ValueError, match=r"correct_key=responses: row \d+ of the batch has tensor"):
        run_step(make_trainer(ktae={"correct_key": "responses"}), put())


def test_missing_correct_key(make_trainer):
    trainer = make_trainer(ktae={"correct_key": "accuracy"})
    with pytest.raises(
        ValueError, match=r"correct_key=accuracy: the reward extras have no .*They have \['acc', 'score'\]"
    ):
        run_step(trainer, put())


def test_the_label_is_decided_before_the_kl_term(make_trainer):
    """With the KL term in the reward, every reward is below the threshold."""
    trainer = make_trainer(use_kl_in_reward=True, kl_ctrl={"type": "fixed", "kl_coef": 5.0})
    rows, metrics = run_step(trainer, put(ref_log_prob=lambda ids: torch.full((len(ids),), -1.0)))
    after_kl = {key: (ids, mask, score - 5 * sum(mask), score > 0) for key, (ids, mask, score, _) in ROWS.items()}
    assert all(score < 0 for _, mask, score, _ in after_kl.values() if any(mask))
    assert_rows(rows, expected_rows(after_kl, labels="acc"))
    assert metrics["ktae/mixed_group_share"] == pytest.approx(2 / 3)


def test_rejection_sampling_edits_the_mask_that_counts(make_trainer):
    """A token whose probability differs between rollout and trainer is masked: nothing of it is counted."""
    trainer = make_trainer(
        rollout_correction={"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
    )
    rows = {("u1", s, 0): (ids, [1] * 2, score, None) for s, (ids, score) in enumerate([([1, 7], 1.0), ([3, 7], 0.0)])}
    batch = put(rows, rollout_log_probs=lambda ids: 9.0 * torch.arange(len(ids)), shuffle=False)
    actual, _ = run_step(trainer, batch)
    kept = {key: (ids, [1, 0], score, None) for key, (ids, _, score, _) in rows.items()}
    assert_rows(actual, expected_rows(kept))


@pytest.mark.parametrize("name", ["rloo", "opo", "reinforce_plus_plus_baseline"])
def test_base_estimator(make_trainer, name):
    """It sees each session once and no padding."""
    rows, _ = run_step(make_trainer(ktae={"base_estimator": name}), put())
    assert_rows(rows, expected_rows(base=name))


def test_other_estimators_are_left_alone(make_trainer):
    rows, metrics = run_step(make_trainer(adv_estimator="grpo"), put())
    assert all(len(advantage[advantage != 0].unique()) <= 1 for advantage in rows.values())
    assert not [name for name in metrics if "ktae" in name]


def test_keys_of_another_form():
    with pytest.raises(ValueError, match=r"The key 'u1-0-0' of a row in TransferQueue is not of the form \{uid\}_"):
        _rollouts(["u1_0_0", "u1-0-0"], [{}, {}])
