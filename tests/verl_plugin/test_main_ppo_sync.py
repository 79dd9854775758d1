"""`main_ppo_sync` of veRL 0.8 where Ray's workers load the plug-in but the command that starts the run does not.

Run with -m, its trainer is a class of `__main__`, which Ray sends to the workers as it is: nothing patches it there.
"""

from pathlib import Path

from real_run import check_run, train

ENV_VARS = "+ray_kwargs.ray_init.runtime_env.env_vars"
IN_WORKERS = [
    f"{ENV_VARS}.VERL_USE_EXTERNAL_MODULES='verl_cpu,recorder,ktae.integrations.verl'",
    f"{ENV_VARS}.TRANSFER_QUEUE_ENABLE='1'",  # else veRL adds it, to variables that Hydra has closed by then
]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def train_with_plug_in_in_workers(assets, tmp_path, module):
    path = f"{EXAMPLES}:{Path(__file__).parent}"
    return train(assets, tmp_path, *IN_WORKERS, module=module, plug_in=False, PYTHONPATH=path)


def test_started_with_m_it_stops_and_says_why(assets, tmp_path):
    returncode, output, calls = train_with_plug_in_in_workers(assets, tmp_path, "verl.trainer.main_ppo_sync")
    assert returncode != 0
    assert "KTAE cannot reach the token ids of the responses." in output
    assert "start it from a file that imports `main`, as examples/verl_0_8_sync.py" in output
    assert calls == []


def test_the_launcher_cures_it(assets, tmp_path):
    check_run(*train_with_plug_in_in_workers(assets, tmp_path, "verl_0_8_sync"), "TaskRunner.run")
