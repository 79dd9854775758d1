"""Loaded into every process of a real run (VERL_USE_EXTERNAL_MODULES): notes each call of the estimator's core.

It wraps the core function before the plug-in imports it, and imports nothing of the plug-in, which has to load by
itself.
"""

import functools
import json
import os

import ray

import ktae.estimator


def recorded(estimate):
    @functools.wraps(estimate)
    def wrapper(token_level_rewards, response_mask, responses, index, **kwargs):
        result = estimate(token_level_rewards, response_mask, responses, index, **kwargs)
        call = {
            "process": ray.get_runtime_context().get_task_function_name(),
            "mask_shape": list(response_mask.shape),
            "responses_shape": list(responses.shape),
            "ids_dtype": str(responses.dtype),
            "ids_under_the_mask": sorted(set(responses[response_mask.bool()].tolist())),
            "groups": len(set(index)),
            "nonzero_values": result.n_nonzero,
        }
        with open(os.environ["KTAE_TEST_RECORD"], "a") as file:
            file.write(json.dumps(call) + "\n")
        return result

    return wrapper


ktae.estimator.estimate = recorded(ktae.estimator.estimate)
