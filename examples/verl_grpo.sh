#!/usr/bin/env bash
# GRPO with key-token values on one node of 8 GPUs, stock veRL 0.9. Not run in this project's tests, which have no GPU;
# its settings are those of configs/ktae_grpo.yaml, which are composed and validated there.
#
#   MODEL=Qwen/Qwen2.5-Math-7B TRAIN=train.parquet VAL=val.parquet examples/verl_grpo.sh [more settings]
set -euo pipefail
configs=$(cd "$(dirname "$0")/../configs" && pwd)

python -m verl.trainer.main_ppo --config-dir "$configs" --config-name ktae_grpo \
    data.train_files="${TRAIN:?parquet files with the prompts}" \
    data.val_files="${VAL:?parquet files with the prompts}" \
    actor_rollout_ref.model.path="${MODEL:?model directory or name}" \
    trainer.project_name=ktae \
    trainer.experiment_name=grpo \
    trainer.total_epochs=1 \
    trainer.save_freq=20 \
    trainer.test_freq=10 \
    'trainer.logger=[console,tensorboard]' \
    "$@"
