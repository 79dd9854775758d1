"""A CPU in the place of the accelerator that veRL asks for: the first half of the rig, for veRL 0.6 to 0.9.

veRL 0.9 has an interface for this, its platforms. Before, veRL takes `torch.cpu` on a machine without CUDA, which lacks
a few functions.
"""

import contextlib
import functools
from importlib.metadata import version
from types import SimpleNamespace

import torch

VERL = tuple(int(part) for part in version("verl").split(".")[:2])


def nothing(*args, **kwargs):
    """Stands for every call that an accelerator would need."""


def zero(*args, **kwargs):
    return 0


# What veRL asks of `torch.cuda`, answered for a CPU.
ANSWERS = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": zero,
    "get_device_name": lambda *args: "cpu",
    "mem_get_info": lambda *args: (1 << 33, 1 << 34),
    "get_rng_state": torch.get_rng_state,
    "set_rng_state": torch.set_rng_state,
    **dict.fromkeys(
        ["set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all"], nothing
    ),
    **dict.fromkeys(["memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"], zero),
}


def borrow_from_accelerators():
    """Use the FSDP engine that veRL 0.7 and 0.8 register for CUDA and NPU, and the helpers for NPU, plain torch."""
    from verl.utils import attention_utils, npu_flash_attn_utils
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp import FSDPEngineWithLMHead

    EngineRegistry.register("language_model", ["fsdp", "fsdp2"], "cpu")(FSDPEngineWithLMHead)
    names = ["index_first_axis", "pad_input", "rearrange", "unpad_input"]
    attention_utils._get_attention_functions = lambda: tuple(getattr(npu_flash_attn_utils, name) for name in names)


if VERL >= (0, 9):
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    @PlatformRegistry.register(platform="cpu")
    class CpuPlatform(PlatformBase):
        """veRL's platform interface. Ray schedules the workers by a logical GPU, as it would on a real one."""

        device_name = "cpu"
        vendor_name = "cpu"
        device_module = SimpleNamespace(**ANSWERS)

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

else:
    for name, answer in ANSWERS.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, answer)

    if VERL >= (0, 7):  # 0.6 trains without engines
        borrow_from_accelerators()


@functools.wraps(torch.distributed.init_process_group)
def init_process_group(backend=None, *, wrapped=torch.distributed.init_process_group, **kwargs):
    """veRL asks for one backend on the CPU and another on the device, "cpu:gloo,cpu:...", which torch refuses."""
    return wrapped("cpu:gloo", **kwargs)


@functools.wraps(torch.distributed.all_gather)
def all_gather(tensor_list, tensor, *args, wrapped=torch.distributed.all_gather, **kwargs):
    """veRL 0.6 gathers a number into tensors of one element, which NCCL accepts and gloo does not."""
    return wrapped(tensor_list, tensor.reshape(tensor_list[0].shape), *args, **kwargs)


torch.distributed.init_process_group = init_process_group
torch.distributed.all_gather = all_gather
