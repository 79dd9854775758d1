"""Loading: in fresh processes, as veRL does it."""

import os
import subprocess
import sys
import textwrap
from importlib.metadata import version

import pytest
from toy_task import VERL

MODULE = {"VERL_USE_EXTERNAL_MODULES": "ktae.integrations.verl"}
NO_PLUG_IN = {"VERL_USE_EXTERNAL_MODULES": "", "VERL_USE_EXTERNAL_PLUGINS": "none"}
WAYS = {"external module": {**NO_PLUG_IN, **MODULE}}
if VERL >= (0, 9):
    WAYS["entry point"] = {}
PLUG_IN = list(WAYS.values())[-1]  # as a user of this version loads it

LIST = """
import verl
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
print("registered:", "ktae" in ADV_ESTIMATOR_REGISTRY)
"""


def run(code, **environment):
    environment = {**os.environ, **(environment or PLUG_IN)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("way", WAYS)
def test_import_verl_registers_ktae(way):
    assert "registered: True" in run(LIST, **WAYS[way]).stdout


def test_both_ways_at_once():
    assert "registered: True" in run(LIST, **MODULE).stdout


def test_switched_off():
    assert "registered: False" in run(LIST, **NO_PLUG_IN).stdout


def test_the_plug_in_adds_no_module_but_its_own_and_touches_no_ray():
    """It is imported in every process of a run; `core_algos` alone would cost each a second."""
    code = "import sys, verl, ray; print(ray.is_initialized()); print(*sys.modules)"
    started, modules = run(code).stdout.splitlines()[-2:]
    without = run(code, **NO_PLUG_IN).stdout.splitlines()[-1].split()
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
    assert run(code, **NO_PLUG_IN).stdout.strip().endswith("False True True")


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


# What the trainers call: their own functions and those that they import by name.
CALLED = ["ppo.ray_trainer.compute_advantage", "ppo.ray_trainer.compute_data_metrics", "main_ppo.validate_config"]
if VERL == (0, 8):
    CALLED += ["main_ppo_sync.PPOTrainer._compute_advantage", "main_ppo_sync.compute_advantage"]
if VERL >= (0, 9):
    CALLED += ["ppo.v1.trainer_base.PPOTrainer._compute_advantage", "ppo.v1.utils.compute_advantage"]


def test_trainers_call_wrappers_that_keep_name_and_source():
    code = f"""
    import inspect, pkgutil, verl
    for name in {CALLED}:
        value = pkgutil.resolve_name("verl.trainer." + name)
        source = inspect.getsource(value).splitlines()
        print(name.endswith(value.__qualname__), any("def " + value.__name__ in line for line in source))
        print(value.__module__.startswith("verl."), hasattr(value, "__ktae_wraps__"))
    """
    process = run(code)
    assert process.stdout.splitlines()[-2 * len(CALLED) :] == ["True True"] * 2 * len(CALLED), process.stderr
    assert "which ktae wraps" not in process.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_broken_plug_in_says_so(tmp_path, way):
    """veRL logs the failure of an entry point at DEBUG, which nobody sees."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules['ktae.integrations.verl.options'] = None  # makes its import fail"
    )
    process = run(LIST, PYTHONPATH=str(tmp_path), **WAYS[way])
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
    missing = f"verl {version('verl')} has no verl.trainer.ppo.ray_trainer.compute_advantage, which ktae wraps"
    assert missing in process.stderr


def test_an_estimator_of_this_name_in_verl_itself():
    code = """
    import verl
    from verl.trainer.ppo import core_algos
    from ktae.integrations.verl import seams
    core_algos.ADV_ESTIMATOR_REGISTRY["ktae"] = print
    seams._register(core_algos)
    """
    error = run(code, **NO_PLUG_IN).stderr
    assert "Two advantage estimators are called ktae" in error
    assert "switch this one off with VERL_USE_EXTERNAL_PLUGINS=none" in error


def test_two_estimators_under_one_name_do_not_pass():
    code = """
    import verl
    from verl.trainer.ppo import core_algos
    core_algos.register_adv_est("ktae")(lambda: None)
    """
    assert "Adv estimator ktae has already been registered" in run(code).stderr
