"""`make demo`: a real veRL training run on the CPU with `algorithm.adv_estimator=ktae`, one line a step.

More settings of veRL may follow: `python examples/demo.py +algorithm.ktae.preset=paper trainer.use_v1=False`.

Real: `python -m verl.trainer.main_ppo`, Ray, TransferQueue, FSDP2, the optimizer. A stand-in: the rollout engine, a
tiny Hugging Face model where vLLM would be. See rig/README.md.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rig"))
from toy_task import make_assets, training_command, training_environment

STEPS = 12
STAGES = {
    "Started a local Ray instance": "Ray is up",
    "Training Progress:   0%": "training",
}
COLUMNS = {
    "reward": "critic/score/mean",
    "mixed groups": "ktae/mixed_group_share",
    "tokens with value": "ktae/nonzero_token_share",
    "mean |value|": "ktae/mean_abs_value",
    "saturated": "ktae/saturated_token_share",
    "ktae seconds": "timing_s/ktae",
    "step seconds": "timing_s/step",
}


def main() -> None:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        make_assets(directory)
        command = training_command(directory, STEPS, "algorithm.adv_estimator=ktae", *sys.argv[1:])
        print(
            "$ python -m verl.trainer.main_ppo algorithm.adv_estimator=ktae", f"... ({len(command) - 4} more settings)"
        )
        print("Task: answer with digits. A tiny model with random weights, 8 prompts x 8 rollouts a step.")
        print("Starting Ray, TransferQueue and the workers takes about 40 seconds.", flush=True)
        log = []
        process = subprocess.Popen(
            command,
            env=training_environment(),
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        pending = dict(STAGES)
        steps = 0
        for line in process.stdout:
            log.append(line)
            for mark in [mark for mark in pending if mark in line]:
                print(f"  [{time.monotonic() - start:3.0f} s] {pending.pop(mark)}", flush=True)
            if re.search(r"\bstep:\d+ - ", line):
                steps += 1
                show(line, steps)
        if process.wait() != 0 or steps != STEPS:
            sys.exit("".join(log[-60:]) + f"\nThe run stopped after {steps} of {STEPS} steps.")
    print(f"{steps} steps in {time.monotonic() - start:.0f} s.")


def show(line: str, step: int) -> None:
    if step == 1:
        print("\nstep  " + "  ".join(COLUMNS))
    cells = []
    for title, name in COLUMNS.items():
        value = re.search(rf" - {re.escape(name)}:([-+.\deE]+)", line)
        if value is None:
            sys.exit(f"{name} is missing from veRL's log of step {step}:\n{line}")
        cells.append(f"{float(value[1]):{len(title)}.3f}")
    print(f"{step:4}  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
