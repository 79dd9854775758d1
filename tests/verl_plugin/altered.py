"""Loaded into every process of a real run: alters what the estimator's core returns, and so what the actor is given.

The environment variable KTAE_TEST_ALTERATION names how. Like `recorder`, it wraps the core before the plug-in imports
it.
"""

import dataclasses
import functools
import os

import ktae.estimator
from ktae.config import KTAEConfig

ALTERATIONS = {
    "none": lambda advantages, _: advantages,
    "negated": lambda advantages, _: -advantages,
    "zero": lambda advantages, _: advantages * 0,
    "key part alone": lambda advantages, rollout_level: advantages - rollout_level,
}


def altered(estimate, alteration):
    @functools.wraps(estimate)
    def wrapper(*args, config=None, **kwargs):
        result = estimate(*args, config=config, **kwargs)
        without_key_part = dataclasses.replace(config or KTAEConfig(), scale=0)
        rollout_level = estimate(*args, config=without_key_part, **kwargs).advantages
        return result._replace(advantages=alteration(result.advantages, rollout_level))

    return wrapper


ktae.estimator.estimate = altered(ktae.estimator.estimate, ALTERATIONS[os.environ["KTAE_TEST_ALTERATION"]])
