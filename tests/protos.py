"""DataProtos for the tests of the veRL plug-in."""

import numpy as np
import torch
from batches import random_batch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import ray_trainer

WIDTH = 9


def data_proto(**non_tensors):
    batch = random_batch()
    rows = len(batch["index"])
    tensors = {
        "prompts": torch.ones(rows, 4, dtype=torch.long),
        "responses": batch["responses"],
        "response_mask": batch["response_mask"],
        "attention_mask": torch.cat([torch.ones(rows, 4, dtype=torch.long), batch["response_mask"]], 1),
        "token_level_scores": batch["token_level_rewards"],
        "token_level_rewards": batch["token_level_rewards"],
    }
    uid = np.array(batch["index"], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uid, **non_tensors}), batch


def compute(data, estimator="ktae", **algorithm):
    config = OmegaConf.create({"adv_estimator": estimator, **algorithm})
    OmegaConf.set_struct(config, True)
    return ray_trainer.compute_advantage(
        data,
        adv_estimator=estimator,
        config=config,
        num_repeat=6,
        norm_adv_by_std_in_grpo=config.get("norm_adv_by_std_in_grpo", True),
    )
