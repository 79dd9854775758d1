"""Train in two gloo processes, save what each generated: `torchrun --nproc-per-node 2 two_processes.py DIRECTORY`."""

import sys
from pathlib import Path

import torch
import toy

from ktae.integrations.trl import KTAEGRPOTrainer


class Saving(KTAEGRPOTrainer):
    batches = []

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        names = ("completion_ids", "completion_mask", "advantages")
        self.batches.append({"rewards": self._rewards, **{name: batch[name] for name in names}})
        return batch


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    settings = {"per_device_train_batch_size": 3, "num_generations": 2, "max_steps": 8, "max_completion_length": 24}
    trainer = toy.make(Saving, directory, settings=settings)
    assert trainer.accelerator.num_processes == 2
    trainer.train()
    torch.save(trainer.batches, directory / f"{trainer.accelerator.process_index}.pt")
    torch.distributed.destroy_process_group()
