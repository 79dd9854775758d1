"""The versions of veRL that ktae supports, and the trainers of each: what `make test-matrix` runs, oldest first.

V0 is RayPPOTrainer, sync is `verl.trainer.main_ppo_sync`, V1 the default of veRL 0.9.
"""

TRAINERS = {
    "0.6.1": ["V0"],
    "0.7.1": ["V0"],
    "0.8.0": ["V0", "sync"],
    "0.9.1": ["V1", "V0"],
}

if __name__ == "__main__":
    print(*TRAINERS)
