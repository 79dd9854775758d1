"""`main_ppo_sync` of veRL 0.8 where Ray's workers load the plug-in but the command that starts the run does not.

Run with -m, its trainer is a class of `__main__`, which Ray sends to the workers as it is: nothing patches it there.
"""

from pathlib import Path

from real_run import check_run, train

IN_WORKERS = "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES='verl_cpu,recorder,{}'"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def train_with_plug_in_in_workers(assets, tmp_path, module):
    path = f"{EXAMPLES}:{Path(__file__).parent}"
    override = IN_WORKERS.format("ktae.integrations.verl")
    return train(assets, tmp_path, override, module=module, plug_in=False, PYTHONPATH=path)


def test_started_with_m_it_stops_and_says_why(assets, tmp_path):
    returncode, output, calls = train_with_plug_in_in_workers(assets, tmp_path, "verl.trainer.main_ppo_sync")
    assert returncode != 0
    assert "KTAE cannot reach the token ids of the responses." in output
    assert "start it from a file that imports `main`, as examples/verl_0_8_sync.py" in output
    assert calls == []


def test_the_launcher_cures_it(assets, tmp_path):
    check_run(*train_with_plug_in_in_workers(assets, tmp_path, "verl_0_8_sync"), "TaskRunner.run")
