"""Let veRL 0.9 train on a machine without an accelerator: a `cpu` platform and a rollout engine called `hf_cpu`.

Load it into every process of a run with `VERL_USE_EXTERNAL_MODULES=verl_cpu VERL_PLATFORM=cpu
VERL_ENGINE_DEVICE=cuda` (the last one picks the FSDP engine that veRL registers for CUDA; it trains on any device), and
give Ray one logical GPU. For demonstrations and tests.
"""

import contextlib
import functools
import os
from types import SimpleNamespace

import ray
import torch
import verl.utils.distributed
import verl.workers.rollout.base as rollout_base
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator


def nothing(*args, **kwargs):
    """Stands for every call that an accelerator would need."""


def zero(*args, **kwargs):
    return 0


# What veRL asks of `torch.cuda`, answered for a CPU.
CPU_DEVICE = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: 1,
    current_device=zero,
    get_device_name=lambda *args: "cpu",
    mem_get_info=lambda *args: (1 << 33, 1 << 34),
    get_rng_state=torch.get_rng_state,
    set_rng_state=torch.set_rng_state,
    **dict.fromkeys(
        ["set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all"], nothing
    ),
    **dict.fromkeys(["memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"], zero),
)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """veRL's platform interface. Ray schedules the workers by a logical GPU, as it would on a real one."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CPU_DEVICE

    def is_available(self):
        return True

    def device_count(self):
        return 1

    def current_device(self):
        return torch.device("cpu")

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = nothing
    empty_cache = profiler_start = profiler_stop = cudart = nothing


# veRL asks for "cpu:gloo,cpu:gloo" here, which torch refuses. Workers import the function by name, later than this.
verl.utils.distributed.initialize_global_process_group_ray = functools.partial(
    verl.utils.distributed.initialize_global_process_group_ray, backend="cpu:gloo"
)


class HuggingFaceServer:
    """Ray actor that generates with a causal model, one request at a time."""

    def __init__(self, path, response_length):
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).float().eval()
        self.eos_token_id = AutoTokenizer.from_pretrained(path).eos_token_id
        self.response_length = response_length
        self.global_steps = None

    async def load(self, weights, global_steps):
        self.model.load_state_dict(weights, strict=False)  # tied embeddings come once
        self.global_steps = global_steps

    async def generate(self, request_id, prompt_ids, sampling_params, **kwargs):
        assert self.global_steps is not None, "veRL asked for rollouts before it sent weights"
        temperature = sampling_params.get("temperature", 1.0)
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


class CpuReplica(RolloutReplica):
    """Starts the server where veRL would start vLLM's."""

    async def launch_servers(self):
        name = f"hf_cpu_server_{self.replica_rank}"
        actor = ray.remote(HuggingFaceServer).options(name=name, num_cpus=0, max_concurrency=64)
        handle = actor.remote(self.model_config.path, self.config.response_length)
        self.servers, self._server_handle, self._server_address = [handle], handle, name


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
        weights = {name: tensor.detach().float().cpu().clone() async for name, tensor in ensure_async_iterator(weights)}
        await ray.get_actor(self.server).load.remote(weights, global_steps or 0)


RolloutReplicaRegistry.register("hf_cpu", lambda: CpuReplica)
rollout_base._ROLLOUT_REGISTRY[("hf_cpu", "async")] = f"{__name__}.CpuServerAdapter"
