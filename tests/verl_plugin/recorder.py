"""Loaded into every process of a real run (VERL_USE_EXTERNAL_MODULES): notes each call of the estimator's core.

It wraps the core function before the plug-in imports it, and imports nothing of the plug-in, which has to load by
itself. Where KTAE_TEST_ADVANTAGES names a file, it also notes the advantages that V1 writes to TransferQueue: what the
actor is trained on.
"""

import functools
import json
import os

import ray

import ktae.estimator


def note(variable, **entry):
    """Append a line to the file that an environment variable names."""
    with open(os.environ[variable], "a") as file:
        file.write(json.dumps(entry) + "\n")


def recorded(estimate):
    @functools.wraps(estimate)
    def wrapper(token_level_rewards, response_mask, responses, index, **kwargs):
        result = estimate(token_level_rewards, response_mask, responses, index, **kwargs)
        if "permutation" in kwargs:
            return result
        is_correct, rollout_index = kwargs["is_correct"], kwargs["rollout_index"]
        note(
            "KTAE_TEST_RECORD",
            process=ray.get_runtime_context().get_task_function_name(),
            mask_shape=list(response_mask.shape),
            responses_shape=list(responses.shape),
            ids_dtype=str(responses.dtype),
            ids_under_the_mask=sorted(set(responses[response_mask.bool()].tolist())),
            groups=len(set(index)),
            nonzero_values=result.n_nonzero,
            index=[str(uid) for uid in index],
            rollouts=[row[mask.bool()].tolist() for row, mask in zip(responses, response_mask, strict=True)],
            scores=token_level_rewards.double().sum(1).tolist(),
            is_correct=is_correct.tolist(),
            rollout_index=rollout_index,
        )
        return result

    return wrapper


def noted(kv_batch_put):
    @functools.wraps(kv_batch_put)
    def wrapper(*args, fields=None, **kwargs):
        if fields is not None and "advantages" in fields.keys():  # noqa: SIM118  (a TensorDict)
            rows = [row.tolist() for row in fields["advantages"].unbind()]
            note("KTAE_TEST_ADVANTAGES", **dict(zip(kwargs["keys"], rows, strict=True)))
        return kv_batch_put(*args, fields=fields, **kwargs)

    return wrapper


ktae.estimator.estimate = recorded(ktae.estimator.estimate)
if "KTAE_TEST_ADVANTAGES" in os.environ:
    import transfer_queue

    transfer_queue.kv_batch_put = noted(transfer_queue.kv_batch_put)
