"""Does token credit make a model learn better? make study

For each task one policy is trained on solutions, and from it each arm trains by reinforcement: first with several
learning rates on seeds kept for that, then with the best of them on the final seeds. Every run leaves a file; one that
is there is not run again, so a study that was interrupted goes on. README.md has the protocol.
"""

import argparse
import csv
import itertools
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from credit import ARMS
from learn import Evaluation, Setting, evaluate, new_policy, reinforce, supervise
from policy import Policy
from tasks import TASKS

RESULTS = Path(__file__).with_name("results")
LEARNING_RATES = {"chain": (5e-4, 7e-4, 1e-3, 1.4e-3), "story": (3e-4, 4.2e-4, 6e-4, 8.4e-4)}
TUNING_SEEDS, FINAL_SEEDS = range(1000, 1002), range(10)
STEPS = 100
CANDIDATE = "z, centred, offset 0.5"
OFFSETS = ("offset 0.2", "offset 0.5")

USUAL = "groups of 16"
SETTINGS = {
    USUAL: Setting(),
    "groups of 8": Setting(prompts=32, rollouts=8),
    "groups of 32": Setting(prompts=8, rollouts=32),
    "groups of 64": Setting(prompts=4, rollouts=64),
    "entropy term 0.01": Setting(entropy_coefficient=0.01),
    "KL term 0.01": Setting(kl_coefficient=0.01),
}
TASK_OF_OTHER_SETTINGS, ARMS_IN_OTHER_SETTINGS = "chain", ("GRPO", "offset 0.5", CANDIDATE)
SEEDS_IN_OTHER_SETTINGS = range(10, 20)


class Run(NamedTuple):
    task: str
    arm: str
    learning_rate: float
    seed: int
    setting: str = USUAL

    def file(self, results: Path) -> Path:
        arm, setting = (name.replace(",", "").replace(" ", "_") for name in (self.arm, self.setting))
        folder = self.task if self.setting == USUAL else f"{self.task}-{setting}"
        return results / folder / f"{arm}-{self.learning_rate:g}-{self.seed}.csv"


class Plan(NamedTuple):
    results: Path
    arms: list[str]
    steps: int
    supervised_updates: int | None  # None: what the task says
    tuning_seeds: range
    final_seeds: range
    seeds_in_other_settings: range

    def tuning(self, task: str) -> list[Run]:
        grid = itertools.product(self.tuning_seeds, self.arms, LEARNING_RATES[task])
        return [Run(task, arm, rate, seed) for seed, arm, rate in grid]

    def final(self, task: str) -> list[Run]:
        """With the learning rate of each arm that did best in tuning."""
        rates = {arm: self.best_learning_rate(task, arm) for arm in self.arms}
        return [Run(task, arm, rates[arm], seed) for seed, arm in itertools.product(self.final_seeds, self.arms)]

    def constants(self, task: str) -> list[Run]:
        """Those with the candidate's learning rate."""
        if CANDIDATE not in self.arms:
            return []
        rate = self.best_learning_rate(task, CANDIDATE)
        return [Run(task, arm, rate, seed) for seed, arm in itertools.product(self.final_seeds, OFFSETS)]

    def other_settings(self) -> list[Run]:
        """Each arm with the learning rates that are the best of one of them in the usual setting."""
        task, arms = TASK_OF_OTHER_SETTINGS, [arm for arm in ARMS_IN_OTHER_SETTINGS if arm in self.arms]
        rates = sorted({self.best_learning_rate(task, arm) for arm in arms})
        settings = [setting for setting in SETTINGS if setting != USUAL]
        grid = itertools.product(self.seeds_in_other_settings, settings, rates, arms)
        return [Run(task, arm, rate, seed, setting) for seed, setting, rate, arm in grid]

    def best_learning_rate(self, task: str, arm: str) -> float:
        return max(LEARNING_RATES[task], key=lambda rate: self.tuning_accuracy(task, arm, rate))

    def tuning_accuracy(self, task: str, arm: str, rate: float) -> float:
        runs = (Run(task, arm, rate, seed) for seed in self.tuning_seeds)
        return float(np.mean([mean_accuracy(self.read(run)) for run in runs]))

    def read(self, run: Run) -> dict[str, Evaluation]:
        """By step, "sampled" and "greedy" for the evaluations at the end."""
        path = run.file(self.results)
        with path.open(encoding="utf-8") as file:
            rows = {row.pop("step"): row for row in csv.DictReader(file)}
        evaluations = {
            step: Evaluation(*(float(row[name]) for name in Evaluation._fields)) for step, row in rows.items()
        }
        if len(curve(evaluations)) != self.steps:
            raise ValueError(f"{path} is of {len(curve(evaluations))} steps, not {self.steps}: of another study.")
        return evaluations

    def is_done(self, run: Run) -> bool:
        return run.file(self.results).exists() and bool(self.read(run))


QUICK = ["GRPO", "offset 0.5", "published"]


def plan(results: Path, quick: bool) -> Plan:
    if quick:
        return Plan(results, QUICK, 3, 20, range(1000, 1001), range(2), range(10, 11))
    return Plan(results, list(ARMS), STEPS, None, TUNING_SEEDS, FINAL_SEEDS, SEEDS_IN_OTHER_SETTINGS)


def checkpoint(task: str, plan: Plan) -> Policy:
    """The supervised policy, trained if it is not there."""
    path = plan.results / f"{task}.pt"
    policy = new_policy(TASKS[task])
    if not path.exists():
        trained = supervise(TASKS[task], plan.supervised_updates or TASKS[task].supervised_updates)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")  # so that no half of a file is taken for a whole
        torch.save(trained.state_dict(), part)
        part.rename(path)
    policy.load_state_dict(torch.load(path))
    return policy


def execute(job: tuple[Plan, Run]) -> Run:
    plan, run = job
    torch.set_num_threads(1)
    task, policy = TASKS[run.task], checkpoint(run.task, plan)
    curve = reinforce(policy, task, ARMS[run.arm], SETTINGS[run.setting], run.learning_rate, run.seed, plan.steps)
    rows = [*enumerate(curve), ("sampled", evaluate(policy, task)), ("greedy", evaluate(policy, task, greedy=True))]
    path = run.file(plan.results)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *Evaluation._fields])
        writer.writerows([step, *(f"{number:.4f}" for number in evaluation)] for step, evaluation in rows)
    part.rename(path)
    return run


def curve(rows: dict[str, Evaluation]) -> list[Evaluation]:
    return [evaluation for step, evaluation in rows.items() if step.isdigit()]


def mean_accuracy(rows: dict[str, Evaluation]) -> float:
    """Over the curve: the share of all rollouts of the run that were correct."""
    return float(np.mean([evaluation.accuracy for evaluation in curve(rows)]))


def execute_all(runs: list[Run], plan: Plan, processes: int) -> None:
    jobs = [(plan, run) for run in runs if not plan.is_done(run)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done, run in enumerate(pool.imap_unordered(execute, jobs), start=1):
            print(
                f"{done}/{len(jobs)} {run.task}, {run.arm}, {run.learning_rate:g}, seed {run.seed}, {run.setting}",
                flush=True,
            )


def stages(plan: Plan, tasks: list[str]) -> Iterator[list[Run]]:
    for task in tasks:
        checkpoint(task, plan)
        yield plan.tuning(task)
        yield plan.final(task)
        yield plan.constants(task)
        if task == TASK_OF_OTHER_SETTINGS:
            yield plan.other_settings()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs' files")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few and short runs, to see that all works: no results")
    arguments = parser.parse_args()
    if arguments.quick and arguments.results == RESULTS:
        parser.error("--quick needs a folder of its own: --results FOLDER")
    torch.set_num_threads(1)
    the_plan = plan(arguments.results, arguments.quick)
    for runs in stages(the_plan, arguments.tasks):
        execute_all(runs, the_plan, arguments.processes)


if __name__ == "__main__":
    main()
