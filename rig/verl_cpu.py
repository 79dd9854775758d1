"""Let veRL 0.6 to 0.9 train on a machine without an accelerator: a CPU device and a rollout engine called `hf_cpu`.

Load it into every process of a run with `VERL_USE_EXTERNAL_MODULES=verl_cpu`, and give Ray one logical GPU. veRL 0.9
needs `VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda` too (the last one picks the FSDP engine that veRL registers for CUDA;
it trains on any device). For demonstrations and tests.
"""

import os

import ray
import torch
import verl.workers.rollout.base as rollout_base
from cpu_device import VERL
from verl import DataProto


class HuggingFaceModel:
    """Generates with a causal model, one prompt at a time."""

    def __init__(self, path, response_length):
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).float().eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
        self.eos_token_id, self.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        self.response_length = response_length
        self.global_steps = None

    def load(self, weights, global_steps):
        self.model.load_state_dict(weights, strict=False)  # tied embeddings come once
        self.global_steps = global_steps

    def sample(self, prompt_ids, temperature):
        assert self.global_steps is not None, "veRL asked for rollouts before it sent weights"
        token_ids, log_probs, cache = [], [], None
        ids = torch.tensor([list(prompt_ids)])
        with torch.inference_mode():
            while len(token_ids) < self.response_length and self.eos_token_id not in token_ids:
                output = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                log_prob = torch.log_softmax(output.logits[0, -1] / (temperature or 1.0), -1)
                token = log_prob.argmax() if temperature == 0 else torch.multinomial(log_prob.exp(), 1)[0]
                token_ids.append(int(token))
                log_probs.append(float(log_prob[token]))
                ids = token.view(1, 1)
        return token_ids, log_probs


class CpuRollout(rollout_base.BaseRollout):
    """The engine of veRL 0.6: lives in the training worker and generates batches of padded rows."""

    def __init__(self, config, model_config, device_mesh):
        super().__init__(config, model_config, device_mesh)
        self.model = HuggingFaceModel(model_config.path, config.response_length)

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, **kwargs):
        self.model.load({name: tensor.detach().float().cpu() for name, tensor in weights}, 0)

    def generate_sequences(self, prompts):
        input_ids, attention_mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]  # [B, P]
        shape = len(input_ids), self.model.response_length
        responses = torch.full(shape, self.model.pad_token_id)
        response_mask, log_probs = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        temperature = 0 if prompts.meta_info.get("validate") else self.config.temperature
        for row, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            token_ids, log_prob = self.model.sample(ids[mask.bool()].tolist(), temperature)
            responses[row, : len(token_ids)] = torch.tensor(token_ids)
            log_probs[row, : len(token_ids)] = torch.tensor(log_prob)
            response_mask[row, : len(token_ids)] = 1
        positions = prompts.batch["position_ids"][:, -1:] + torch.arange(1, shape[1] + 1)
        tensors = {
            "prompts": input_ids,
            "responses": responses,
            "rollout_log_probs": log_probs,
            "input_ids": torch.cat([input_ids, responses], 1),  # [B, P + T]
            "attention_mask": torch.cat([attention_mask, response_mask], 1),
            "position_ids": torch.cat([prompts.batch["position_ids"], positions], 1),
        }
        return DataProto.from_dict(tensors, non_tensors=prompts.non_tensor_batch)


class HuggingFaceServer(HuggingFaceModel):
    """The engine since veRL 0.7: a Ray actor that answers one request at a time."""

    async def load(self, weights, global_steps):
        super().load(weights, global_steps)

    async def generate(self, request_id, prompt_ids, sampling_params, **kwargs):
        from verl.workers.rollout.replica import TokenOutput

        token_ids, log_probs = self.sample(prompt_ids, sampling_params.get("temperature", 1.0))
        return TokenOutput(
            token_ids=token_ids,
            log_probs=log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    async def do_nothing(self, *args, **kwargs):
        """There is no cache to free and no request to abort."""

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = do_nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = do_nothing


class CpuServerAdapter(rollout_base.BaseRollout):
    """Sends the server its weights. Lives in the training worker of the server's rank or, where these are apart, in
    the worker of a replica, which then knows its rank.
    """

    def __init__(self, *args, replica_rank=-1, **kwargs):
        super().__init__(*args, **kwargs)
        self.server = f"hf_cpu_server_{os.environ['RANK'] if replica_rank == -1 else replica_rank}"

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, global_steps=None, **kwargs):
        if hasattr(weights, "__aiter__"):  # from a checkpoint engine
            weights = [item async for item in weights]
        weights = {name: tensor.detach().float().cpu().clone() for name, tensor in weights}
        await ray.get_actor(self.server).load.remote(weights, global_steps or 0)


def register_server():
    from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

    class CpuReplica(RolloutReplica):
        """Starts the server where veRL would start vLLM's."""

        async def launch_servers(self):
            name = f"hf_cpu_server_{self.replica_rank}"
            actor = ray.remote(HuggingFaceServer).options(name=name, num_cpus=0, max_concurrency=64)
            handle = actor.remote(self.model_config.path, self.config.response_length)
            self.servers, self._server_handle, self._server_address = [handle], handle, name

    RolloutReplicaRegistry.register("hf_cpu", lambda: CpuReplica)
    rollout_base._ROLLOUT_REGISTRY[("hf_cpu", "async")] = f"{__name__}.CpuServerAdapter"


if VERL < (0, 7):
    rollout_base._ROLLOUT_REGISTRY[("hf_cpu", "sync")] = f"{__name__}.CpuRollout"
else:
    register_server()
