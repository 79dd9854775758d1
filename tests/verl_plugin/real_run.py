"""Start a real training run on the CPU rig, and read what it left behind."""

import json
import re
import subprocess
from pathlib import Path

from toy_task import training_command, training_environment

STEPS, PROMPTS, ROLLOUTS = 3, 4, 8
METRICS = [
    "ktae/mixed_group_share",
    "ktae/single_rollout_group_share",
    "ktae/nonzero_token_share",
    "ktae/mean_value",
    "ktae/mean_abs_value",
    "ktae/saturated_token_share",
    "timing_s/ktae",
]

# For trainers whose rollout servers do not share the trainer's processes: a logical GPU more, and weights that travel.
ROLLOUT_APART = [
    "actor_rollout_ref.rollout.checkpoint_engine.backend=ray_queue",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=verl_cpu_sync",
    "ray_kwargs.ray_init.num_gpus=2",
    "ray_kwargs.ray_init.num_cpus=32",
]


def train(
    assets,
    tmp_path,
    *overrides,
    module="verl.trainer.main_ppo",
    steps=STEPS,
    load="recorder",
    plug_in=True,
    **variables,
):
    """Run an entry point of veRL: its exit status, what it printed, and the recorder's calls."""
    record = tmp_path / "calls.jsonl"
    variables = {"PYTHONPATH": str(Path(__file__).parent), "KTAE_TEST_RECORD": str(record)} | variables
    overrides = ["algorithm.adv_estimator=ktae", *overrides]
    process = subprocess.run(
        training_command(assets, steps, *overrides, prompts=PROMPTS, rollouts=ROLLOUTS, module=module),
        env=training_environment(load, plug_in=plug_in, **variables),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
    )
    calls = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return process.returncode, process.stdout, calls


def logged(output, name):
    """Values of a metric in the console log, one a step."""
    return [float(value) for value in re.findall(rf" - {re.escape(name)}:([-+.\deE]+)", output)]


def mixed_group_share(call):
    """The share of the groups of a recorded call that have both outcomes."""
    outcomes = {}
    for uid, correct in zip(call["index"], call["is_correct"], strict=True):
        outcomes.setdefault(uid, set()).add(correct)
    return sum(len(labels) == 2 for labels in outcomes.values()) / len(outcomes)


def check_run(returncode, output, calls, process):
    """Assert that a run called the estimator in this process, once a step, with real ids, and logged its metrics."""
    assert returncode == 0, output[-5000:]
    assert len(calls) == STEPS
    for call in calls:
        assert call["process"].endswith(process)
        assert call["mask_shape"] == call["responses_shape"]
        assert call["mask_shape"][0] == PROMPTS * ROLLOUTS
        assert call["groups"] == PROMPTS
        assert call["ids_dtype"] == "torch.int64"
        assert len(call["ids_under_the_mask"]) > 20  # sampled ids, not padding
    for name in METRICS:
        assert len(logged(output, name)) == STEPS, name
    assert len(logged(output, "ktae/chance/mean_value")) == 1  # of every tenth step
    mixed = logged(output, "ktae/mixed_group_share")
    assert any(mixed), "no group had both outcomes: the run shows nothing"
    assert [call["nonzero_values"] > 0 for call in calls] == [share > 0 for share in mixed]
