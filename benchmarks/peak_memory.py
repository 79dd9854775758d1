"""Peak memory of one call beyond inputs and outputs, in a process of its own (Linux): `peak_memory.py BATCH.pt`."""

import ctypes
import gc
import re
import sys
from pathlib import Path

import torch

from ktae import compute_ktae_advantage


def resident(field):
    """VmRSS, the resident size, or VmHWM, its peak, in bytes."""
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def main(path):
    torch.set_num_threads(1)
    rewards, mask, responses, uid = torch.load(path, weights_only=False)
    compute_ktae_advantage(rewards[:32], mask[:32], responses[:32], uid[:32])  # loads torch's code for it
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # or the call could use what loading has left
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    advantages, _ = compute_ktae_advantage(rewards, mask, responses, uid)
    extra, size = resident("VmHWM") - before - advantages.nbytes, responses.nbytes
    print(
        f"{len(uid):6} rows, responses {size / 1e6:.0f} MB: {extra / 1e6:.0f} MB beyond inputs and outputs, "
        f"{extra / size:.2f} of it"
    )


if __name__ == "__main__":
    main(sys.argv[1])
