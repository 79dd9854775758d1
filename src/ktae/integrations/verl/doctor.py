"""`python -m ktae doctor`: will `algorithm.adv_estimator=ktae` work here, and if not, why not."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from ktae import __version__
from ktae.integrations.verl.base import check_options
from ktae.integrations.verl.options import NAME
from ktae.integrations.verl.seams import LIFETIMES

PROBE = Path(__file__).with_name("probe.py").read_text()
MARK = "ktae probe: "  # before the result: other modules print too

VERL_CONFIG = "verl.trainer.config"
DEFAULT_CONFIG = "ppo_trainer"

RAY_TIMEOUT = 120  # seconds

# What lends the ids in the trainers that a configuration selects.
TRAINER_SEAMS = {
    "V0": "verl.trainer.ppo.ray_trainer.compute_advantage",
    "V1": "verl.trainer.ppo.v1.trainer_base.PPOTrainer._compute_advantage",
}

# Modules that veRL imports without requiring them, and the packages that have them.
PACKAGES = {"transfer_queue": "TransferQueue"}


class Finding(NamedTuple):
    """One line of the report; `fix` is empty where nothing is to be done."""

    ok: bool
    text: str
    fix: str = ""


def diagnose(
    overrides: Sequence[str], config_dir: str | None = None, config_name: str = DEFAULT_CONFIG, ray: bool = False
) -> Iterator[Finding]:
    """Look at this machine's veRL, its processes, and a run with these Hydra overrides."""
    try:
        installed = version("verl")
    except PackageNotFoundError:
        fix = f"{sys.executable} -m pip install 'ktae[verl]', or use the Python of your runs"
        yield Finding(False, f"verl is not installed for {sys.executable}", fix)
        return
    yield Finding(True, f"verl {installed}, ktae {__version__}, Python {sys.executable}")
    report = _probe_here()
    yield from _process("a new process", report)
    if "error" in report or not report["loaded"]:
        return
    if not overrides and config_dir is None and config_name == DEFAULT_CONFIG:
        overrides = [f"algorithm.adv_estimator={NAME}"]
        yield Finding(True, f"no overrides are given: {overrides[0]} is assumed, and veRL's defaults")
    config, finding = _configuration(overrides, config_dir, config_name)
    yield finding
    if config is None:
        return
    trainer = "V1" if config.get("trainer", {}).get("use_v1") else "V0"
    yield from _seams("a new process", report, trainer)
    yield from _trainer(report, trainer)
    if ray:
        yield from _in_ray(config, trainer)


def _probe_here() -> dict[str, Any]:
    """The probe in a process of its own: in this one, the doctor has imported the plug-in already."""
    command = [sys.executable, "-c", f"{PROBE}\nimport json\nprint('\\n{MARK}' + json.dumps(probe()))"]
    process = subprocess.run(command, capture_output=True, text=True)
    results = [line.removeprefix(MARK) for line in process.stdout.splitlines() if line.startswith(MARK)]
    if results:
        return json.loads(results[-1])
    said = process.stderr.strip().splitlines()
    return {"verl": None, "error": said[-1] if said else f"the process ended with status {process.returncode}"}


def _process(where: str, report: dict[str, Any]) -> Iterator[Finding]:
    """Does veRL load the plug-in there, and is the estimator registered?"""
    error = report.get("error")
    if error is not None:
        what = "cannot import verl" if report["verl"] is None else "cannot load the plug-in"
        yield Finding(False, f"{where} {what}: {error}", _fix_of_import(error))
        return
    if not report["loaded"]:
        yield Finding(False, f"{where}: veRL does not load the plug-in", _fix_of_loading())
        return
    yield Finding(True, f"{where}: veRL loads the plug-in")
    fix = "" if report["registered"] else "another estimator took the name, or this verl has no registry of estimators"
    yield Finding(report["registered"], f"{where}: {NAME} is {'registered' if not fix else 'not registered'}", fix)


def _seams(where: str, report: dict[str, Any], trainer: str) -> Iterator[Finding]:
    """Are the functions wrapped that this trainer and all trainers call?"""
    for seam, state in report.get("seams", {}).items():
        of_another = seam.startswith(tuple(LIFETIMES)) and not TRAINER_SEAMS[trainer].startswith(seam)
        if state == "wrapped":
            yield Finding(True, f"{where}: {seam} is wrapped")
        elif of_another:
            yield Finding(True, f"{where}: {seam}: {state}; the configured trainer does not need it")
        elif state != "absent":
            fix = _fix_of_import(state) if "Error" in state else f"use a verl that ktae {__version__} supports"
            yield Finding(False, f"{where}: {seam}: {state}", fix)


def _fix_of_loading() -> str:
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS")
    if policy is not None:
        return f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps veRL from it: unset it, or add ktae to its names"
    return "set VERL_USE_EXTERNAL_MODULES=ktae.integrations.verl; from verl 0.9 on, reinstalling ktae is enough"


def _fix_of_import(error: str) -> str:
    if "Two advantage estimators" in error:
        return "remove the other registration"
    _, found, name = error.partition("No module named ")
    if not found:
        return "see the error; `pip check` finds an installation that does not fit together"
    module = name.strip("'\"").split("'")[0]
    if any(f"{listed.strip()}.".startswith(f"{module}.") for listed in _external_modules()):
        return f"VERL_USE_EXTERNAL_MODULES names it: correct it, or put the module where {sys.executable} finds it"
    package = module.split(".")[0]
    return f"{sys.executable} -m pip install {PACKAGES.get(package, package)}"


def _external_modules() -> list[str]:
    return os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")


def _configuration(overrides: Sequence[str], config_dir: str | None, config_name: str) -> tuple[Any, Finding]:
    """The run's configuration as veRL composes it, None if it is unusable, and what there is to say of it."""
    try:
        config = _compose(overrides, config_dir, config_name)
    except Exception as error:
        fix = "see the error"
        if "Could not override" in str(error):
            fix = "give the overrides as to veRL: options of ktae need a +, as in +algorithm.ktae.scale=1"
        return None, Finding(False, f"the configuration cannot be composed: {error}", fix)
    algorithm = config.get("algorithm", {})
    estimator = algorithm.get("adv_estimator")
    if estimator != NAME:
        return None, Finding(False, f"algorithm.adv_estimator={estimator}", f"set algorithm.adv_estimator={NAME}")
    try:
        options = check_options(algorithm)
    except ValueError as error:
        return None, Finding(False, str(error), "correct the option")
    return config, Finding(True, f"options: {options}")


def _compose(overrides: Sequence[str], config_dir: str | None, config_name: str) -> dict[str, Any]:
    import hydra
    from omegaconf import OmegaConf

    if config_dir is None:
        initialized = hydra.initialize_config_module(VERL_CONFIG, version_base=None)
    else:
        initialized = hydra.initialize_config_dir(str(Path(config_dir).resolve()), version_base=None)
        overrides = [*overrides, f"hydra.searchpath=[pkg://{VERL_CONFIG}]"]
    with initialized:
        config = hydra.compose(config_name, overrides=list(overrides))
    # The other parts may refer to what is known in a run only.
    parts = [name for name in ("algorithm", "trainer", "ray_kwargs") if config.get(name) is not None]
    return {name: OmegaConf.to_container(config[name], resolve=True) for name in parts}


def _trainer(report: dict[str, Any], trainer: str) -> Iterator[Finding]:
    """Can this trainer lend the token ids?"""
    seam = TRAINER_SEAMS[trainer]
    wrapped = report["seams"].get(seam) == "wrapped"
    text = f"the configured trainer, {trainer}, {'lends' if wrapped else 'cannot lend'} the token ids"
    yield Finding(wrapped, text, "" if wrapped else f"{seam} has to be wrapped: see above")
    if trainer == "V0":
        result = report["dry_run"]
        yield Finding(
            result == "ok", f"an advantage step of two rollouts: {result}", "" if result == "ok" else "see above"
        )


def _in_ray(config: dict[str, Any], trainer: str) -> Iterator[Finding]:
    try:
        nodes, report = _probe_in_ray(config.get("ray_kwargs", {}).get("ray_init", {}))
    except Exception as error:
        fix = "start the cluster, or unset RAY_ADDRESS" if isinstance(error, ConnectionError) else "see the error"
        yield Finding(False, f"Ray: {type(error).__name__}: {error}", fix)
        return
    where = f"a Ray worker ({nodes} node{'s' * (nodes > 1)})"
    yield from _process(where, report)
    yield from _seams(where, report, trainer)


def _probe_in_ray(settings: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Number of nodes of the run's cluster (RAY_ADDRESS, or a new one on this machine), and the probe in a worker."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    namespace: dict[str, Any] = {"__name__": "__main__"}  # so that Ray sends the function itself, not its module's name
    exec(PROBE, namespace)
    runtime_env = OmegaConf.merge(get_ppo_ray_runtime_env(), settings.get("runtime_env") or {})
    own = {"runtime_env": OmegaConf.to_container(runtime_env), "log_to_driver": False}
    try:
        ray.init(**{**settings, **own})
        probe = ray.remote(num_cpus=0)(namespace["probe"])  # the cluster's may all be taken
        return len(ray.nodes()), ray.get(probe.remote(), timeout=RAY_TIMEOUT)
    finally:
        ray.shutdown()
