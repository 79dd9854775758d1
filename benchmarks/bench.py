"""Speed and memory of the estimator, as ratios to veRL's own GRPO in the same run.

python benchmarks/bench.py [--quick] [--plot DIRECTORY]
"""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import verl
from batches import real, zipf
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, compute_grpo_vectorized_outcome_advantage

from ktae import compute_ktae_advantage, reference

HERE = Path(__file__).parent


def measure(function, repeats, warm_up=1):
    """Best and median seconds; the best is what the machine can do, the median what it did."""
    seconds = []
    for _ in range(warm_up + repeats):
        start = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds[warm_up:]), statistics.median(seconds[warm_up:])


def compare(name, batch, repeats):
    """One line: ktae, grpo and their ratio, measured alternately so that both see the same machine."""
    rewards, mask, responses, uid = batch
    ktae, grpo = [], []
    for _ in range(repeats + 1):
        ktae.append(measure(lambda: compute_ktae_advantage(rewards, mask, responses, uid), 1, warm_up=0)[0])
        grpo.append(measure(lambda: compute_grpo_outcome_advantage(rewards, mask, uid), 1, warm_up=0)[0])
    tokens = int(mask.sum())
    best, typical, baseline = min(ktae[1:]), statistics.median(ktae[1:]), min(grpo[1:])
    print(
        f"{name:44} {tokens / 1e6:8.2f} {best * 1e3:9.1f} {typical * 1e3:9.1f} {baseline * 1e3:9.1f}"
        f" {best / baseline:7.2f} {best / tokens * 1e9:9.1f}",
        flush=True,
    )
    return tokens, best / tokens * 1e9


def heading(title):
    print(f"\n{title}")
    columns = f"{'batch':44} {'M tokens':>8} {'ktae ms':>9} {'median':>9} {'grpo ms':>9} {'ratio':>7} {'ns/token':>9}"
    print(columns)


def table(repeats):
    heading("Main table (groups x rollouts, T)")
    compare("real: AMC 2023, 80 x 16, T = 1024", real(), repeats)
    compare("Zipf, 64 x 16, T = 3072, mean length 800", zipf(64, 16, 3072, 800), repeats)
    compare("Zipf, 256 x 16, T = 3072, mean length 800", zipf(256, 16, 3072, 800), repeats)
    compare("Zipf, long: 8 x 64, T = 16384, mean 8000", zipf(8, 64, 16384, 8000), max(1, repeats // 2))
    compare("Zipf, tiny groups: 8192 x 4, T = 64, mean 40", zipf(8192, 4, 64, 40), max(1, repeats // 2))
    rewards, mask, responses, uid = zipf(256, 16, 3072, 800)
    compare("one outcome everywhere, 256 x 16, T = 3072", (torch.zeros_like(rewards), mask, responses, uid), repeats)


def scans(repeats):
    points = []
    heading("Length (16 groups x 16)")
    for mean in (100, 400, 1600, 6400):
        points.append(compare(f"mean length {mean}", zipf(16, 16, 4 * mean, mean), repeats))
    heading("Group size (4096 rollouts, mean length 200)")
    for size in (4, 16, 64, 256, 1024):
        compare(f"{4096 // size} x {size}", zipf(4096 // size, size, 800, 200), repeats)
    heading("Number of groups (x 16, mean length 800): cost linear in the tokens")
    for groups in (20, 80, 320, 1280):
        points.append(compare(f"{groups} x 16", zipf(groups, 16, 2400, 800), max(1, repeats // 3)))
    return points


def against_the_others():
    print("\nOther estimators on the real batch, ms: ", end="")
    rewards, mask, responses, uid = real()
    grpo, _ = measure(lambda: compute_grpo_outcome_advantage(rewards, mask, uid), 5)
    vectorized, _ = measure(lambda: compute_grpo_vectorized_outcome_advantage(rewards, mask, uid), 5)
    ktae, _ = measure(lambda: compute_ktae_advantage(rewards, mask, responses, uid), 5)
    print(f"veRL grpo {grpo * 1e3:.1f}, veRL grpo_vectorized {vectorized * 1e3:.1f}, ktae {ktae * 1e3:.1f}", end=" ")
    print(f"({ktae / grpo:.2f} x grpo, {ktae / vectorized:.1f} x grpo_vectorized)")

    rows = slice(0, 64)
    rollouts = [ids[m.bool()].tolist() for ids, m in zip(responses[rows], mask[rows], strict=True)]
    scores = rewards[rows].sum(1).tolist()
    correct = [score > 0 for score in scores]
    slow, _ = measure(lambda: reference.ktae_advantages(rollouts, scores, list(uid[rows]), correct), 1, warm_up=0)
    fast, _ = measure(lambda: compute_ktae_advantage(rewards[rows], mask[rows], responses[rows], uid[rows]), 5)
    print(f"The slow reference on 4 of its groups: {slow * 1e3:.0f} ms, {slow / fast:.0f} x ktae")


def memory():
    """Peak memory beyond inputs and outputs, as a share of `responses`, in a child process each."""
    print("\nPeak memory (Zipf, groups of 16, T = 3072; child process)")
    for groups in (64, 256, 512):
        with tempfile.NamedTemporaryFile(suffix=".pt") as file:
            torch.save(zipf(groups, 16, 3072, 800), file.name)
            child = [sys.executable, str(HERE / "peak_memory.py"), file.name]
            print(subprocess.run(child, capture_output=True, text=True, check=True).stdout.rstrip(), flush=True)


def on_cuda(repeats):
    if not torch.cuda.is_available():
        print("\nCUDA: not available, not measured")
        return
    heading(f"CUDA: {torch.cuda.get_device_name()}")
    rewards, mask, responses, uid = zipf(256, 16, 3072, 800)
    compare("Zipf, 256 x 16, T = 3072, on the GPU", (rewards.cuda(), mask.cuda(), responses.cuda(), uid), repeats)


def plot(points, directory):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    tokens, cost = zip(*sorted(points), strict=True)
    axes.semilogx(tokens, cost, "o-", color="#0072b2")
    axes.set(xlabel="tokens in the batch", ylabel="ns per token", ylim=(0, None), title="ktae, one thread")
    axes.grid(alpha=0.3)
    Path(directory).mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "svg"):
        path = Path(directory) / f"ns_per_token.{suffix}"
        figure.savefig(path, dpi=150)
        print(f"wrote {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the main table alone")
    parser.add_argument("--plot", metavar="DIRECTORY", help="write ns_per_token.png and .svg there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in veRL's TaskRunner
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, veRL {verl.__version__}"
    print(f"{platform.machine()}, {versions}, {torch.get_num_threads()} thread")
    print("Best of several runs each; ratio = ktae / veRL's grpo, run alternately.")
    repeats = 3 if arguments.quick else 7
    table(repeats)
    if arguments.quick:
        return
    points = scans(3)
    against_the_others()
    memory()
    on_cuda(repeats)
    if arguments.plot:
        plot(points, arguments.plot)


if __name__ == "__main__":
    main()
