"""Tables and plots of the runs that study.py left. python examples/study/tables.py --figures docs/figures"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from scipy import stats
from study import (
    CANDIDATE,
    LEARNING_RATES,
    OFFSETS,
    RESULTS,
    TASK_OF_OTHER_SETTINGS,
    Plan,
    Run,
    curve,
    mean_accuracy,
    plan,
)
from tasks import TASKS

matplotlib.use("svg")
from matplotlib import pyplot as plt

SHOWN = ["GRPO", "offset 0.5", "published", CANDIDATE, "oracle"]  # as curves


class FinalRuns(NamedTuple):
    """Of an arm; arrays of a number for each seed."""

    learning_rate: float
    curves: np.ndarray  # [seeds, steps] accuracy
    accuracy: np.ndarray  # over the curve
    sampled: np.ndarray
    greedy: np.ndarray
    length: np.ndarray  # at the end
    entropy: np.ndarray


def final_runs(runs: list[Run], plan: Plan) -> FinalRuns:
    files = [plan.read(run) for run in runs]

    def at_end(which: str, measure: str) -> np.ndarray:
        return np.array([getattr(rows[which], measure) for rows in files])

    return FinalRuns(
        runs[0].learning_rate,
        np.array([[evaluation.accuracy for evaluation in curve(rows)] for rows in files]),
        np.array([mean_accuracy(rows) for rows in files]),
        at_end("sampled", "accuracy"),
        at_end("greedy", "accuracy"),
        at_end("sampled", "length"),
        at_end("sampled", "entropy"),
    )


def final_runs_of_arms(runs: list[Run], plan: Plan) -> dict[str, FinalRuns]:
    names = dict.fromkeys(run.arm for run in runs)
    arms = {name: final_runs([run for run in runs if run.arm == name], plan) for name in names}
    first = {name: arm.curves[:, 0].tolist() for name, arm in arms.items()}
    if len({tuple(accuracies) for accuracies in first.values()}) > 1:
        raise ValueError(f"The arms of {runs[0].task} do not start alike, so they cannot be paired: {first}.")
    return arms


class Difference(NamedTuple):
    mean: float
    half_width: float  # of the 95 % interval
    p: float
    better: int  # of the seeds
    seeds: int

    def cells(self) -> str:
        return f"{self.mean:+.4f} ± {self.half_width:.4f} | {self.better}/{self.seeds} | {self.p:.2g}"


def difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """a - b, paired."""
    d = a - b
    return Difference(d.mean(), half_width(d), float(stats.ttest_rel(a, b).pvalue), int((d > 0).sum()), len(d))


def half_width(values: np.ndarray) -> float:
    """Of the 95 % interval of the mean, by Student's t."""
    return float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def holm(p: list[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979)."""
    order = np.argsort(p)
    steps = [(len(p) - i) * p[k] for i, k in enumerate(order)]
    corrected = np.minimum(np.maximum.accumulate(steps), 1)
    return [float(corrected[np.flatnonzero(order == k)[0]]) for k in range(len(p))]


def better_offset(task: str, plan: Plan) -> str:
    """In tuning, each with its best learning rate."""
    offsets = [arm for arm in OFFSETS if arm in plan.arms]
    return max(offsets, key=lambda arm: max(plan.tuning_accuracy(task, arm, rate) for rate in LEARNING_RATES[task]))


def measures_table(arms: dict[str, FinalRuns]) -> Iterator[str]:
    yield "| arm | learning rate | accuracy over the curve | at the end, sampled | greedy | words | entropy |"
    yield "|---|---|---|---|---|---|---|"
    for name, arm in arms.items():
        numbers = [f"{x.mean():.3f} ± {half_width(x):.3f}" for x in (arm.accuracy, arm.sampled, arm.greedy)]
        numbers += [f"{arm.length.mean():.1f}", f"{arm.entropy.mean():.2f}"]
        yield f"| {name} | {arm.learning_rate:g} | {' | '.join(numbers)} |"


def differences_table(arms: dict[str, FinalRuns], controls: list[str]) -> Iterator[str]:
    """Of accuracy over the curve."""
    heads = " | ".join(f"to {control} | better | p | p, corrected" for control in controls)
    yield f"| arm | {heads} |"
    yield "|---|" + "---|---|---|---|" * len(controls)
    columns = []
    for control in controls:
        others = [name for name in arms if name != control]
        found = [difference(arms[name].accuracy, arms[control].accuracy) for name in others]
        corrected = holm([d.p for d in found])
        columns.append({name: f"{d.cells()} | {p:.2g}" for name, d, p in zip(others, found, corrected, strict=True)})
    for name in arms:
        yield f"| {name} | " + " | ".join(column.get(name, " | | |") for column in columns) + " |"


def questions_table(arms: dict[str, FinalRuns]) -> Iterator[str]:
    """The protocol's questions about the candidate, and what is left of the second one when the offset is matched."""
    yield "| accuracy over the curve | difference | better | p | p, corrected |"
    yield "|---|---|---|---|---|"
    candidate, grpo, oracle = (arms[name].accuracy for name in (CANDIDATE, "GRPO", "oracle"))
    questions = {f"candidate - {name}": (candidate, arms[name].accuracy) for name in ("GRPO", "published", *OFFSETS)}
    questions["candidate - (GRPO + a third of the gap to the oracle)"] = (candidate, grpo + (oracle - grpo) / 3)
    found = [difference(*pair) for pair in questions.values()]
    for question, d, p in zip(questions, found, holm([d.p for d in found]), strict=True):
        yield f"| {question} | {d.cells()} | {p:.2g} |"
    constant, bound = (arms[name].accuracy.mean() for name in ("offset 0.5", "oracle, centred, offset 0.5"))
    yield ""
    yield (
        f"Share of the gap to the oracle that is closed: {(candidate - grpo).mean() / (oracle - grpo).mean():.2f} from "
        f"GRPO, of which the constant alone {(constant - grpo.mean()) / (oracle - grpo).mean():.2f}; "
        f"{(candidate.mean() - constant) / (bound - constant):.2f} from offset 0.5 to the oracle with that offset."
    )


def constants_table(arms: dict[str, FinalRuns], constants: dict[str, FinalRuns]) -> Iterator[str]:
    """What is left of the candidate's lead when the constants have its learning rate."""
    candidate, grpo = arms[CANDIDATE], arms["GRPO"]
    rate = f"learning rate {candidate.learning_rate:g}"
    yield f"| {rate} | constant - GRPO | better | p | candidate - constant | better | p |"
    yield "|---|---|---|---|---|---|---|"
    for name, constant in constants.items():
        pairs = (constant, grpo), (candidate, constant)
        cells = (difference(a.accuracy, b.accuracy).cells() for a, b in pairs)
        yield f"| {name} | {' | '.join(cells)} |"


def end_table(arms: dict[str, FinalRuns], control: str) -> Iterator[str]:
    """Differences at the end of training."""
    yield f"| arm, to {control} | sampled | greedy | words | entropy |"
    yield "|---|---|---|---|---|"
    for name in (name for name in arms if name != control):
        cells = []
        for measure, digits in (("sampled", 3), ("greedy", 3), ("length", 1), ("entropy", 2)):
            d = difference(getattr(arms[name], measure), getattr(arms[control], measure))
            cells.append(f"{d.mean:+.{digits}f} ± {d.half_width:.{digits}f}")
        yield f"| {name} | {' | '.join(cells)} |"


def settings_table(plan: Plan) -> Iterator[str]:
    """Accuracy over the curve in other settings than the usual one, all arms with the same learning rate."""
    runs = plan.other_settings()
    rows = list(dict.fromkeys((run.setting, run.learning_rate) for run in runs))
    arms = [final_runs_of_arms([run for run in runs if (run.setting, run.learning_rate) == row], plan) for row in rows]
    names = [f"{setting} | {rate:g}" for setting, rate in rows]
    columns = [[f"{found['GRPO'].accuracy.mean():.3f}" for found in arms]]
    for control in ("GRPO", "offset 0.5"):
        differences = [difference(found[CANDIDATE].accuracy, found[control].accuracy) for found in arms]
        columns.append([d.cells() for d in differences])
        columns.append([f"{p:.2g}" for p in holm([d.p for d in differences])])
    heads = "| to GRPO | better | p | p, corrected | to offset 0.5 | better | p | p, corrected |"
    yield f"| {TASK_OF_OTHER_SETTINGS}, candidate | learning rate | GRPO {heads}"
    yield "|---|---|---|" + "---|" * 8
    for row in zip(names, *columns, strict=True):
        yield f"| {' | '.join(row)} |"


def tables(task: str, arms: dict[str, FinalRuns], plan: Plan) -> Iterator[str]:
    """Lines, with an empty one before each table."""
    has_candidate = CANDIDATE in arms
    yield from ["", *measures_table(arms)]
    if has_candidate:
        yield from ["", *questions_table(arms)]
        yield from ["", *constants_table(arms, final_runs_of_arms(plan.constants(task), plan))]
    yield from ["", *differences_table(arms, ["GRPO", better_offset(task, plan)])]
    yield from ["", *end_table(arms, "GRPO")]
    if has_candidate and task == TASK_OF_OTHER_SETTINGS:
        yield from ["", *settings_table(plan)]


def plot_curves(task: str, arms: dict[str, FinalRuns], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name in (name for name in SHOWN if name in arms):
        curves = arms[name].curves
        step, mean = np.arange(curves.shape[1]), curves.mean(0)
        margin = stats.t.ppf(0.975, len(curves) - 1) * stats.sem(curves, axis=0)
        (line,) = axes.plot(step, mean, label=name, linewidth=1.4)
        axes.fill_between(step, mean - margin, mean + margin, alpha=0.2, color=line.get_color(), linewidth=0)
    axes.set(xlabel="step", ylabel="accuracy of the rollouts", title=f"{task}: mean and 95 % interval of the seeds")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def plot_differences(task: str, arms: dict[str, FinalRuns], path: Path) -> None:
    names = [name for name in arms if name != "GRPO"]
    found = [difference(arms[name].accuracy, arms["GRPO"].accuracy) for name in names]
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.28 * len(names)), layout="constrained")
    rows = np.arange(len(names))
    axes.errorbar([d.mean for d in found], rows, xerr=[d.half_width for d in found], fmt="o", markersize=4, capsize=2)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set(yticks=rows, yticklabels=names, xlabel="accuracy over the curve, difference to GRPO (95 % interval)")
    axes.set_title(task)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})  # the same file for the same numbers
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the runs' files")
    parser.add_argument("--quick", action="store_true", help="of a study with --quick")
    parser.add_argument("--figures", type=Path, help="write the plots to this folder")
    arguments = parser.parse_args()
    matplotlib.rcParams["svg.hashsalt"] = "ktae"
    the_plan = plan(arguments.results, arguments.quick)
    for task in arguments.tasks:
        try:
            arms = final_runs_of_arms(the_plan.final(task), the_plan)
            lines = list(tables(task, arms, the_plan))
        except FileNotFoundError as error:
            parser.exit(1, f"{error.filename} is not there yet: study.py makes it.\n")
        print(f"\n### {task}", *lines, sep="\n")
        if arguments.figures:
            plot_curves(task, arms, arguments.figures / f"{task}_curves.svg")
            plot_differences(task, arms, arguments.figures / f"{task}_differences.svg")


if __name__ == "__main__":
    main()
