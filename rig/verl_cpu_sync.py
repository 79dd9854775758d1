"""Weights of a trainer to rollout servers that do not share its processes: veRL's checkpoint engine, on a CPU.

Trainers that roll out elsewhere need
`actor_rollout_ref.rollout.checkpoint_engine={backend: ray_queue, custom_backend_module: verl_cpu_sync}`; veRL's own
engines for them (nccl and the like) need accelerators.
"""

from ray.util.queue import Queue
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("ray_queue")
class RayQueueEngine(CheckpointEngine):
    """The first trainer rank puts the weights into a Ray queue, once for each rollout worker."""

    def __init__(self, bucket_size, is_master=False):
        self.is_master = is_master
        self.queue, self.receivers = None, 0

    def prepare(self):
        return Queue(actor_options={"num_cpus": 0}) if self.is_master else None

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        def arguments(workers):
            return {"queue": [metadata[0]] * workers, "receivers": [rollout_world_size] * workers}

        return arguments(actor_wg_world_size), arguments(rollout_world_size)

    def init_process_group(self, queue, receivers):
        self.queue, self.receivers = queue, receivers

    async def send_weights(self, weights, global_steps=None):
        weights = [(name, tensor.detach().cpu().clone()) for name, tensor in weights]  # a collective: every rank
        for _ in range(self.receivers if self.is_master else 0):
            await self.queue.put_async(weights)

    async def receive_weights(self, global_steps=None):
        for name, tensor in await self.queue.get_async():
            yield name, tensor

    def finalize(self):
        if self.is_master:
            self.queue.shutdown()
        self.queue = None
