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
    "ktae/mean_abs_value",
    "ktae/saturated_token_share",
    "timing_s/ktae",
]


def train(assets, tmp_path, *overrides, **variables):
    """Run `verl.trainer.main_ppo`: its exit status, what it printed, and the recorder's calls."""
    record = tmp_path / "calls.jsonl"
    variables = {"PYTHONPATH": str(Path(__file__).parent), "KTAE_TEST_RECORD": str(record)} | variables
    process = subprocess.run(
        training_command(assets, STEPS, "algorithm.adv_estimator=ktae", *overrides, prompts=PROMPTS, rollouts=ROLLOUTS),
        env=training_environment("recorder", **variables),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    calls = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return process.returncode, process.stdout, calls


def logged(output, name):
    """Values of a metric in the console log, one a step."""
    return [float(value) for value in re.findall(rf" - {re.escape(name)}:([-+.\deE]+)", output)]
