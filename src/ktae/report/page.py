"""Analyses -> one HTML file that shows them, without a server or network."""

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from ktae import KTAEConfig
from ktae.groups import group_relative_advantage
from ktae.report.analysis import Analysis
from ktae.report.display import P_NAMES, STATISTICS, visible
from ktae.report.distributions import Distributions
from ktae.report.summary import Summary

SOURCES = Path(__file__).parent / "page"
SCRIPTS = ("filters.js", "page.js")


def write_page(
    analyses: Iterable[Analysis], path: Path, config: KTAEConfig, notes: Callable[[], Iterable[str]]
) -> None:
    """Write the report. One group at a time is in memory; `path` appears when all of it is written.

    Args:
        analyses: what is shown, in this order.
        path: the HTML file.
        config: the settings that the analyses were made with.
        notes: sentences for the header, asked for after the last analysis.
    """
    assert config.scale is not None  # resolved by KTAEConfig
    distributions = Distributions(Summary(config.scale), P_NAMES[config.preset])
    # The figures stand above the groups and are known after them: the groups wait in a file.
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=path.parent) as waiting:
        for analysis in analyses:
            distributions.add(analysis)
            group = {"header": header(analysis), "data": htmlsafe_json_dumps(content(analysis, config), _compact)}
            waiting.write(json.dumps(group) + "\n")
        waiting.seek(0)
        shown = {"config": config, "notes": [visible(note) for note in notes()]}
        _write(_groups(waiting), distributions, path, shown)


def _write(groups: Iterator[dict], distributions: Distributions, path: Path, shown: dict[str, Any]) -> None:
    script = "\n".join((SOURCES / name).read_text(encoding="utf-8") for name in SCRIPTS)
    template = Environment(loader=FileSystemLoader(SOURCES), autoescape=True, trim_blocks=True).get_template(
        "page.html"
    )
    stream = template.stream(
        groups=groups,
        total=distributions.summary,
        figures=distributions.figures(),
        p_name=distributions.p_name,
        **shown,
        style=Markup((SOURCES / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(stream)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _groups(waiting: IO[str]) -> Iterator[dict]:
    for line in waiting:
        group = json.loads(line)
        yield group["header"] | {"data": Markup(group["data"])}


def header(analysis: Analysis) -> dict[str, Any]:
    """What is shown of a group before it is opened."""
    group, table = analysis.group, analysis.table
    values = table.key_token_value.abs()
    return {
        "label": visible(group.label),
        "prompt": visible(group.prompt, "↵\n"),
        "step": None if group.step is None else visible(str(group.step)),
        "correct": int(analysis.correct.sum()),
        "incorrect": int((~analysis.correct).sum()),
        "tokens": int(analysis.occurrences.sum()),
        # |V| of the tokens that rollouts of this outcome have
        "largest_correct": float((values * (table.a > 0)).amax()) if len(values) else 0.0,
        "largest_incorrect": float((values * (table.b > 0)).amax()) if len(values) else 0.0,
    }


def content(analysis: Analysis, config: KTAEConfig) -> dict[str, Any]:
    """What is shown of a group when it is open. A rollout is a list of kinds of tokens: a text and a row of the table.

    Tokens of one id may differ in their text: words in the white space before them. Where the file has the advantages
    that training used, these are shown, and as A_i what they are beyond V, on average.
    """
    kinds: dict[tuple[str, int], int] = {}
    token_id = analysis.table.token_id.numpy()  # ascending
    value = analysis.table.key_token_value.numpy()
    advantages = rollout_advantages([rollout.correct for rollout in analysis.group.rollouts], config)
    if config.offset is not None and analysis.mixed:
        shift = config.offset - np.average(value, weights=analysis.occurrences)
        advantages = [advantage + shift for advantage in advantages]
    rollouts = []
    members = zip(analysis.group.rollouts, analysis.tokens.ids, analysis.tokens.texts, advantages, strict=True)
    for rollout, ids, texts, advantage in members:
        rows = np.searchsorted(token_id, np.asarray(ids, dtype=np.int64))
        tokens = [kinds.setdefault(kind, len(kinds)) for kind in zip(texts, rows.tolist(), strict=True)]
        shown = {"correct": rollout.correct, "advantage": _rounded(advantage), "tokens": tokens}
        if rollout.advantages is not None and len(ids):
            shown["advantages"] = [_rounded(x) for x in rollout.advantages]
            shown["advantage"] = _rounded(float(np.mean(np.array(rollout.advantages) - value[rows])))
        rollouts.append(shown)
    statistics = {name: _column(getattr(analysis.table, field)) for name, field in STATISTICS.items()}
    return {
        "texts": [visible(text, "↵\n") for text, _ in kinds],
        "rows": [row for _, row in kinds],
        "table": statistics | {"n": analysis.occurrences.tolist()},
        "rollouts": rollouts,
    }


def rollout_advantages(correct: list[bool], config: KTAEConfig) -> list[float]:
    """A_i of a group's rollouts: GRPO on the outcomes."""
    group = torch.zeros(len(correct), dtype=torch.long)
    scores = torch.tensor(correct, dtype=torch.float64)
    return group_relative_advantage(scores, group, config.norm_adv_by_std, config.epsilon).tolist()


def _column(values: torch.Tensor) -> list[float]:
    return values.tolist() if values.dtype == torch.int64 else [_rounded(value) for value in values.tolist()]


def _rounded(value: float) -> float:
    """As exact as it is shown; the file is half the size."""
    return float(f"{value:.4g}")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
