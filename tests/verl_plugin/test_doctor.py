"""`python -m ktae doctor` on set-ups that work and on broken ones, each a virtual environment or process of its own."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

KTAE = "algorithm.adv_estimator=ktae"
ROOT = Path(__file__).resolve().parents[2]
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))


def doctor(*arguments, python=sys.executable, **environment):
    command = [str(python), "-m", "ktae", "doctor", *arguments]
    environment = {**os.environ, **environment}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert "Traceback" not in process.stderr, process.stderr
    return process.returncode, process.stdout


@pytest.fixture
def environment_without(tmp_path):
    """A function: this virtual environment again, without the packages of these names; returns its Python."""

    def make(*missing):
        venv.create(tmp_path / "venv", symlinks=True)
        target = next((tmp_path / "venv" / "lib").iterdir()) / "site-packages"
        for entry in SITE_PACKAGES.iterdir():
            if not entry.name.lower().split("-")[0].startswith(missing):
                (target / entry.name).symlink_to(entry)
        return tmp_path / "venv" / "bin" / "python", target

    return make


def test_a_set_up_that_works():
    options = ["+algorithm.ktae.beta_ig=2", "+algorithm.ktae.base_estimator=rloo"]
    returncode, output = doctor("trainer.use_v1=False", "-cn", "ppo_trainer", KTAE, *options)
    assert returncode == 0, output
    assert "verl.trainer.ppo.ray_trainer.compute_advantage is wrapped" in output
    assert "information_gain_weight=2" in output
    assert "base_estimator='rloo'" in output
    assert "the configured trainer, V0, lends the token ids" in output
    assert "an advantage step of two rollouts: ok" in output
    assert output.endswith("no problem found\n")


def test_without_overrides_the_one_key_is_assumed_and_said():
    returncode, output = doctor()
    assert returncode == 0, output
    assert "no overrides are given: algorithm.adv_estimator=ktae is assumed" in output
    assert "the configured trainer, V1, lends the token ids" in output


def test_a_recipe_and_a_ray_worker():
    recipe = ["--config-dir", str(ROOT / "configs"), "--config-name", "ktae_dapo"]
    returncode, output = doctor("--ray", *recipe, "ray_kwargs.ray_init.num_cpus=0")
    assert returncode == 0, output
    assert "correct_key='acc'" in output
    assert "a Ray worker (1 node): veRL loads the plug-in" in output
    assert "a Ray worker (1 node): ktae is registered" in output


@pytest.mark.parametrize(
    ("arguments", "problem", "fix"),
    [
        ([KTAE, "+algorithm.ktae.sclae=2"], "Unknown option +algorithm.ktae.sclae", "correct the option"),
        ([KTAE, "algorithm.ktae.scale=2"], "the configuration cannot be composed", "options of ktae need a +"),
        (["algorithm.adv_estimator=grpo"], "algorithm.adv_estimator=grpo", "set algorithm.adv_estimator=ktae"),
        (["trainer.use_v1=False"], "algorithm.adv_estimator=gae", "set algorithm.adv_estimator=ktae"),
        (["--config-name", "nowhere", KTAE], "the configuration cannot be composed", "see the error"),
        ([KTAE, "+algorithm.ktae.base_estimator=gae"], "it needs `values`, a critic's", "correct the option"),
    ],
)
def test_a_configuration_that_does_not_work(arguments, problem, fix):
    returncode, output = doctor(*arguments)
    assert returncode == 1
    assert f"FAIL  {problem}" in output or problem in output.split("FAIL")[-1]
    assert f"fix: {fix}" in output or fix in output.split("fix:")[-1]
    assert output.endswith("1 problem found\n")


def test_the_plug_in_is_switched_off():
    returncode, output = doctor(VERL_USE_EXTERNAL_PLUGINS="none")
    assert returncode == 1
    assert "FAIL  a new process: veRL does not load the plug-in" in output
    assert "fix: VERL_USE_EXTERNAL_PLUGINS=none keeps veRL from it: unset it" in output


def test_two_registrations_under_one_name(tmp_path):
    (tmp_path / "rival.py").write_text(
        "from verl.trainer.ppo.core_algos import register_adv_est\n@register_adv_est('ktae')\ndef rival(**_): pass\n"
    )
    returncode, output = doctor(VERL_USE_EXTERNAL_MODULES="rival", PYTHONPATH=str(tmp_path))
    assert returncode == 1
    assert "FAIL  a new process cannot load the plug-in: ValueError: Two advantage estimators are called ktae" in output
    assert "fix: remove the other registration" in output


def test_a_module_of_the_user_is_missing():
    returncode, output = doctor(VERL_USE_EXTERNAL_MODULES="nowhere")
    assert returncode == 1
    assert "FAIL  a new process cannot import verl: ModuleNotFoundError: No module named 'nowhere'" in output
    assert "fix: VERL_USE_EXTERNAL_MODULES names it" in output


@pytest.mark.parametrize("name", ["ktae.integrations.vrl", "ktae.integration.verl"])
def test_a_mistyped_module_of_ours(name):
    returncode, output = doctor(VERL_USE_EXTERNAL_MODULES=name)
    assert returncode == 1
    assert "fix: VERL_USE_EXTERNAL_MODULES names it: correct it" in output


@pytest.mark.parametrize(
    ("module", "status", "text"),
    [
        ("import os; os._exit(3)", 1, "FAIL  a new process cannot import verl: the process ended with status 3"),
        ("import atexit; atexit.register(print, 'bye')", 0, "ok    a new process: veRL loads the plug-in"),
    ],
)
def test_a_module_of_the_user_that_ends_the_process_or_prints(tmp_path, module, status, text):
    (tmp_path / "noisy.py").write_text(module)
    returncode, output = doctor(KTAE, VERL_USE_EXTERNAL_MODULES="noisy", PYTHONPATH=str(tmp_path))
    assert returncode == status, output
    assert text in output


def test_a_configuration_without_a_trainer(tmp_path):
    (tmp_path / "mine.yaml").write_text("algorithm:\n  adv_estimator: ktae\n")
    returncode, output = doctor("--config-path", str(tmp_path), "--config-name", "mine")
    assert returncode == 0, output
    assert "the configured trainer, V0, lends the token ids" in output


def test_a_checkout_that_is_not_installed(environment_without):
    python, _ = environment_without("ktae", "__editable__")
    modules = {"PYTHONPATH": str(ROOT / "src"), "VERL_USE_EXTERNAL_MODULES": "ktae.integrations.verl"}
    returncode, output = doctor(KTAE, python=python, **modules)
    assert returncode == 0, output
    returncode, output = doctor(KTAE, python=python, PYTHONPATH=modules["PYTHONPATH"])
    assert returncode == 1
    assert "fix: set VERL_USE_EXTERNAL_MODULES=ktae.integrations.verl" in output


def test_without_verl(environment_without):
    python, _ = environment_without("verl")
    returncode, output = doctor(python=python)
    assert returncode == 1
    assert f"FAIL  verl is not installed for {python}" in output
    assert f"fix: {python} -m pip install 'ktae[verl]'" in output


def test_without_transfer_queue(environment_without):
    python, _ = environment_without("transfer_queue", "transferqueue")
    returncode, output = doctor(python=python)
    assert returncode == 1
    assert "verl.trainer.ppo.v1.trainer_base: ModuleNotFoundError: No module named 'transfer_queue'" in output
    assert f"fix: {python} -m pip install TransferQueue" in output
    assert "FAIL  the configured trainer, V1, cannot lend the token ids" in output
    returncode, output = doctor("trainer.use_v1=False", KTAE, python=python)
    assert returncode == 0, output
    assert "trainer_base: ModuleNotFoundError: No module named 'transfer_queue'; the configured trainer" in output


def test_a_verl_that_is_too_old(environment_without):
    python, site_packages = environment_without("verl")
    (site_packages / "verl").mkdir()
    (site_packages / "verl-0.5.0.dist-info").mkdir()
    (site_packages / "verl-0.5.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: verl\nVersion: 0.5.0\n"
    )
    returncode, output = doctor(python=python)
    assert returncode == 1
    assert "FAIL  the plug-in cannot be imported: verl 0.5.0 is not supported by ktae" in output
    assert "Install verl>=0.6.1" in output
