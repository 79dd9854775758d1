"""What a process of a veRL run has of the plug-in. The source is executed in processes that have not imported ktae."""


def probe():
    """Import veRL as any process of a run does, and look.

    Returns:
        A dict for JSON: `executable`, `verl` (version), `loaded` (by veRL itself), `registered`, `seams` (name ->
        "wrapped", "missing", "not wrapped", "absent" or an error), `dry_run` ("ok" or an error), and `error` where it
        stopped.
    """
    import importlib
    import logging
    import sys

    report = {"executable": sys.executable, "verl": None, "loaded": False, "registered": False, "seams": {}}
    logging.disable(logging.WARNING)  # what the plug-in warns of is reported here
    try:
        import verl

        report["verl"] = verl.__version__
        report["loaded"] = "ktae.integrations.verl" in sys.modules
        importlib.import_module("ktae.integrations.verl")  # the package itself: it raises what kept it from loading
        if not report["loaded"]:
            return report
        from ktae.integrations.verl.estimator import compute_advantage
        from ktae.integrations.verl.seams import SEAMS

        core_algos = importlib.import_module("verl.trainer.ppo.core_algos")
        report["registered"] = core_algos.ADV_ESTIMATOR_REGISTRY.get("ktae") is compute_advantage
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
        return report

    for name, attributes in SEAMS.items():
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
            report["seams"][name] = "absent" if absent else f"{type(error).__name__}: {error}"
            continue
        for path in attributes:
            value = module
            for attribute in path.split("."):
                value = getattr(value, attribute, None)
            wrapped = hasattr(value, "__ktae_wraps__")
            report["seams"][f"{name}.{path}"] = "wrapped" if wrapped else "missing" if value is None else "not wrapped"
    try:
        report["dry_run"] = dry_run()
    except Exception as error:
        report["dry_run"] = f"{type(error).__name__}: {error}"
    return report


def dry_run():
    """Two rollouts that differ in one token, through veRL's own advantage step for a DataProto."""
    import importlib

    import numpy as np
    import torch
    from verl import DataProto

    compute_advantage = importlib.import_module("verl.trainer.ppo.ray_trainer").compute_advantage
    scores = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    tensors = {
        "responses": torch.tensor([[5, 7], [6, 7]]),
        "response_mask": torch.ones(2, 2, dtype=torch.long),
        "token_level_scores": scores,
        "token_level_rewards": scores,
    }
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(["p", "p"], dtype=object)})
    advantages = compute_advantage(data, adv_estimator="ktae", config={}).batch["advantages"]
    differ = bool((advantages[:, 0] != advantages[:, 1]).all())
    return "ok" if differ else f"all tokens of a rollout got the same advantage: {advantages.tolist()}"
