"""`python -m ktae doctor`: will `algorithm.adv_estimator=ktae` work here, and if not, why not."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from ktae.integrations.verl.base import find_base
from ktae.integrations.verl.options import NAME, parse_options

PROBE = Path(__file__).with_name("probe.py").read_text()

# Modules that veRL imports without requiring them, and the packages that have them.
PACKAGES = {"transfer_queue": "TransferQueue"}


class Finding(NamedTuple):
    """One line of the report; `fix` is empty where nothing is to be done."""

    ok: bool
    text: str
    fix: str = ""


def diagnose(
    overrides: Sequence[str], config_dir: str | None = None, config_name: str = "ppo_trainer", ray: bool = False
) -> Iterator[Finding]:
    """Look at this machine's veRL, its processes, and a run with these Hydra overrides."""
    try:
        installed = version("verl")
    except PackageNotFoundError:
        fix = f"{sys.executable} -m pip install 'ktae[verl]', or use the Python of your runs"
        yield Finding(False, f"verl is not installed for {sys.executable}", fix)
        return
    yield Finding(True, f"verl {installed}, ktae {version('ktae')}, Python {sys.executable}")
    report = _probe_here()
    yield from _process("a new process", report)
    if "error" in report or not report["loaded"]:
        return
    config, findings = _configuration(overrides, config_dir, config_name)
    yield from findings
    if config is not None:
        yield from _trainer(config, report)
    if ray:
        yield from _in_ray(config)


def _probe_here() -> dict[str, Any]:
    """The probe in a process of its own: in this one, the doctor has imported the plug-in already."""
    command = [sys.executable, "-c", f"{PROBE}\nimport json\nprint(json.dumps(probe()))"]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        return {"verl": None, "error": process.stderr.strip().splitlines()[-1]}
    return json.loads(process.stdout.splitlines()[-1])


def _process(where: str, report: dict[str, Any]) -> Iterator[Finding]:
    """Did veRL load the plug-in there, is the estimator registered, are the functions of the trainers wrapped?"""
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
    for seam, state in report["seams"].items():
        if state == "wrapped":
            yield Finding(True, f"{where}: {seam} is wrapped")
        elif state != "absent":
            fix = _fix_of_import(state) if "Error" in state else f"use a verl that ktae {version('ktae')} supports"
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
    module = name.strip("'\"").split("'")[0].split(".")[0]
    return f"{sys.executable} -m pip install {PACKAGES.get(module, module)}"


def _configuration(overrides: Sequence[str], config_dir: str | None, config_name: str) -> tuple[Any, list[Finding]]:
    """The run's configuration as veRL composes it, None if it is unusable, and what there is to say of it."""
    import hydra
    from omegaconf import OmegaConf

    chosen = any(override.lstrip("+").startswith("algorithm.adv_estimator=") for override in overrides)
    if not chosen and config_dir is None:
        overrides = [f"algorithm.adv_estimator={NAME}", *overrides]
    package = "verl.trainer.config"
    try:
        if config_dir is None:
            initialized = hydra.initialize_config_module(package, version_base=None)
        else:
            initialized = hydra.initialize_config_dir(str(Path(config_dir).resolve()), version_base=None)
            overrides = [*overrides, f"hydra.searchpath=[pkg://{package}]"]
        with initialized:
            config = hydra.compose(config_name, overrides=list(overrides))
        algorithm = OmegaConf.to_container(config.algorithm, resolve=True)
    except Exception as error:
        fix = "give the overrides as to veRL: options of ktae need a +, as in +algorithm.ktae.scale=1"
        return None, [Finding(False, f"the configuration cannot be composed: {error}", fix)]
    estimator = config.algorithm.adv_estimator
    if estimator != NAME:
        return None, [Finding(False, f"algorithm.adv_estimator={estimator}", f"set algorithm.adv_estimator={NAME}")]
    try:
        options = parse_options(algorithm)
        if options.base_estimator is not None:
            find_base(options.base_estimator)
    except ValueError as error:
        return None, [Finding(False, str(error), "correct the option")]
    return config, [Finding(True, f"options: {options}")]


def _trainer(config: Any, report: dict[str, Any]) -> Iterator[Finding]:
    """Can the trainer that this configuration selects lend the token ids?"""
    v1 = bool(config.trainer.get("use_v1", False))
    name, seam = (
        ("V1", "verl.trainer.ppo.v1.trainer_base.PPOTrainer._compute_advantage")
        if v1
        else ("V0", "verl.trainer.ppo.ray_trainer.compute_advantage")
    )
    wrapped = report["seams"].get(seam) == "wrapped"
    text = f"the configured trainer, {name}, {'lends' if wrapped else 'cannot lend'} the token ids"
    yield Finding(wrapped, text, "" if wrapped else f"{seam} has to be wrapped: see above")
    if not v1:
        dry_run = report.get("dry_run")
        yield Finding(
            dry_run == "ok", f"an advantage step of two rollouts: {dry_run}", "" if dry_run == "ok" else "see above"
        )


def _in_ray(config: Any) -> Iterator[Finding]:
    """The probe in a worker of the cluster that a run would use: RAY_ADDRESS, or a new one on this machine."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    namespace: dict[str, Any] = {"__name__": "__main__"}  # so that Ray sends the function itself, not its module's name
    exec(PROBE, namespace)
    settings = config.ray_kwargs.get("ray_init", {}) if config is not None else {}
    runtime_env = OmegaConf.merge(get_ppo_ray_runtime_env(), settings.get("runtime_env", {}))
    settings: Any = OmegaConf.to_container(OmegaConf.create({**settings, "runtime_env": runtime_env}))
    try:
        ray.init(**settings, log_to_driver=False)
        nodes = len(ray.nodes())
        report: Any = ray.get(ray.remote(namespace["probe"]).remote())
    except Exception as error:
        yield Finding(False, f"Ray: {type(error).__name__}: {error}", "start the cluster, or unset RAY_ADDRESS")
        return
    finally:
        ray.shutdown()
    yield from _process(f"a Ray worker ({nodes} node{'s' * (nodes > 1)})", report)
