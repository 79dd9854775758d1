"""Loading: in fresh processes, as veRL does it."""

import os
import subprocess
import sys
import textwrap

import pytest

LIST = """
import verl
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
print("registered:", "ktae" in ADV_ESTIMATOR_REGISTRY)
"""


def run(code, **environment):
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_import_verl_registers_ktae():
    assert "registered: True" in run(LIST).stdout


def test_entry_points_switched_off():
    assert "registered: False" in run(LIST, VERL_USE_EXTERNAL_PLUGINS="none").stdout


def test_external_modules_load_it_too():
    variables = {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "ktae.integrations.verl"}
    assert "registered: True" in run(LIST, **variables).stdout


def test_both_ways_at_once():
    assert "registered: True" in run(LIST, VERL_USE_EXTERNAL_MODULES="ktae.integrations.verl").stdout


def test_the_plug_in_adds_no_module_but_its_own_and_touches_no_ray():
    """It is imported in every process of a run; `core_algos` alone would cost each a second."""
    code = "import sys, verl, ray; print(ray.is_initialized()); print(*sys.modules)"
    started, modules = run(code).stdout.splitlines()[-2:]
    without = run(code, VERL_USE_EXTERNAL_PLUGINS="none").stdout.splitlines()[-1].split()
    assert started == "False"
    added = set(modules.split()) - set(without)
    assert "ktae.integrations.verl.estimator" in added
    assert [name for name in added if name.partition(".")[0] != "ktae"] == []


def test_modules_imported_earlier_are_patched_at_once():
    code = """
    import verl
    import verl.trainer.ppo.ray_trainer as ray_trainer
    before = hasattr(ray_trainer.compute_advantage, "__ktae_wraps__")
    import ktae.integrations.verl
    import ktae.integrations.verl.seams
    once = ray_trainer.compute_advantage
    ktae.integrations.verl.seams.install()
    print(before, hasattr(once, "__ktae_wraps__"), ray_trainer.compute_advantage is once)
    """
    assert run(code, VERL_USE_EXTERNAL_PLUGINS="none").stdout.strip().endswith("False True True")


INSTALL_AGAIN = """
import importlib, verl, ktae.integrations.verl
from ktae.integrations.verl.seams import install
"""


@pytest.mark.parametrize("again", ["install(); install()", "importlib.reload(ktae.integrations.verl)"])
def test_installing_again_before_the_trainer_is_imported(again):
    assert "registered: True" in run(INSTALL_AGAIN + again + LIST).stdout


def test_other_finders_may_ask_all_finders_too_or_be_old():
    code = """
    import sys

    class AsksAll:
        def find_spec(self, name, path=None, target=None):
            others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
            if name == "verl.trainer.ppo.core_algos":
                return next(filter(None, (finder.find_spec(name, path, target) for finder in others)))

    class Old:  # Python before 3.12 tolerates it
        def find_module(self, name, path=None):
            return None

    sys.meta_path[:0] = [Old(), AsksAll()]
    """
    assert "registered: True" in run(textwrap.dedent(code) + LIST).stdout


def test_a_patched_module_keeps_its_own_loader():
    code = """
    import importlib, pickle, verl
    from verl.trainer.ppo import core_algos, ray_trainer
    print(type(core_algos.__loader__).__name__, type(core_algos.__spec__.loader).__name__)
    pickle.dumps(core_algos.__spec__)
    print(hasattr(importlib.reload(ray_trainer).compute_advantage, "__ktae_wraps__"))
    """
    assert run(code).stdout.split()[-3:] == ["SourceFileLoader", "SourceFileLoader", "True"]


def test_wrappers_keep_name_and_source():
    code = """
    import inspect, verl
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1 import utils
    step = PPOTrainer._compute_advantage
    print(step.__qualname__, "kv_batch_put" in inspect.getsource(step))
    print(utils.compute_advantage.__module__, hasattr(utils.compute_advantage, "__ktae_wraps__"))
    """
    output = run(code).stdout.strip().splitlines()[-2:]
    assert output == ["PPOTrainer._compute_advantage True", "verl.trainer.ppo.ray_trainer True"]


@pytest.mark.parametrize("way", ["entry point", "external module"])
def test_a_broken_plug_in_says_so(tmp_path, way):
    """veRL logs the failure of an entry point at DEBUG, which nobody sees."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules['ktae.integrations.verl.options'] = None  # makes its import fail"
    )
    variables = {"PYTHONPATH": str(tmp_path)}
    if way == "external module":
        variables |= {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "ktae.integrations.verl"}
    process = run(LIST, **variables)
    assert "The ktae plug-in for veRL could not be installed; adv_estimator=ktae will not work." in process.stderr
    assert "ktae.integrations.verl.options" in process.stderr
    assert "registered: True" not in process.stdout


def test_a_seam_that_has_moved_is_named():
    """Another veRL than those supported: the warning names version, function and consequence; others can go on."""
    code = """
    import sys, types, verl
    from ktae.integrations.verl import seams
    seams._wrap(seams.SEAMS["verl.trainer.ppo.ray_trainer"], types.ModuleType("verl.trainer.ppo.ray_trainer"))
    print("went on")
    """
    process = run(code)
    assert process.stdout.strip().endswith("went on")
    assert "verl 0.9.1 has no verl.trainer.ppo.ray_trainer.compute_advantage, which ktae wraps" in process.stderr


def test_an_estimator_of_this_name_in_verl_itself():
    code = """
    import verl
    from verl.trainer.ppo import core_algos
    from ktae.integrations.verl import seams
    core_algos.ADV_ESTIMATOR_REGISTRY["ktae"] = print
    seams._register(core_algos)
    """
    error = run(code, VERL_USE_EXTERNAL_PLUGINS="none").stderr
    assert "Two advantage estimators are called ktae" in error
    assert "switch this one off with VERL_USE_EXTERNAL_PLUGINS=none" in error


def test_two_estimators_under_one_name_do_not_pass():
    code = """
    import verl
    from verl.trainer.ppo import core_algos
    core_algos.register_adv_est("ktae")(lambda: None)
    """
    assert "Adv estimator ktae has already been registered" in run(code).stderr
