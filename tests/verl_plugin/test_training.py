"""Real runs of `algorithm.adv_estimator=ktae` on the CPU rig, with every trainer of the installed veRL."""

from importlib.metadata import version

import pytest
from real_run import check_run, train
from supported import TRAINERS
from toy_task import VERL

MODULES = {"sync": "verl.trainer.main_ppo_sync"}
PROCESSES = {"V1": "TaskRunnerV1.run"}
# In 0.9 V0 is the trainer to be asked for. It uses `correct_key` here, the others the score.
OVERRIDES = {"V0": ["+algorithm.ktae.correct_key=acc", *["trainer.use_v1=False"] * (VERL >= (0, 9))]}


@pytest.mark.parametrize("trainer", TRAINERS[version("verl")])
def test_training(assets, tmp_path, trainer):
    module = MODULES.get(trainer, "verl.trainer.main_ppo")
    check_run(
        *train(assets, tmp_path, *OVERRIDES.get(trainer, []), module=module), PROCESSES.get(trainer, "TaskRunner.run")
    )


def test_without_the_plug_in_verl_stops(assets, tmp_path):
    """The negative control: nothing but the plug-in, which veRL loads by itself, makes the runs above work."""
    returncode, output, calls = train(assets, tmp_path, plug_in=False)
    assert returncode != 0
    assert "Unknown advantage estimator simply: ktae" in output
    assert calls == []


def test_a_mistyped_option_stops_the_run_before_it_starts(assets, tmp_path):
    returncode, output, _ = train(assets, tmp_path, "+algorithm.ktae.sclae=2")
    assert returncode != 0
    assert "Unknown option +algorithm.ktae.sclae. Known options: preset, fisher_weight" in output
    # veRL validates the configuration before it starts Ray, or before 0.9 as the first thing in the TaskRunner.
    later = "TaskRunner" if VERL >= (0, 9) else "WorkerDict"
    assert later not in output
