"""`ktae report` from the outside."""

import csv
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from batches import advantages
from protos import compute, data_proto

from ktae import KTAEConfig
from ktae.__main__ import main
from ktae.report.analysis import analyse
from ktae.report.page import content
from ktae.report.rollouts import Group, Rollout

DATA = Path(__file__).resolve().parents[2] / "examples" / "data" / "amc23.npz"


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "3.jsonl"
    texts = ["\x1b[31mso 6", "6 /bold]", "8", "so 8"]
    lines = [{"input": "2 + 4?", "output": text, "score": 1.0 - i // 2, "step": 3} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{broken\n")
    return path


def test_real_rollouts(capsys):
    assert main(["report", str(DATA), "--groups", "1", "--top", "2"]) == 0
    output = capsys.readouterr().out
    assert "How many positive perfect squares less than" in output
    assert "9 of 16 correct" in output
    assert "4 groups (4 of 16), 64 rollouts; tokens: token ids, with the texts that the file gives" in output
    assert "tokens with |V| > 0.9 scale" in output
    assert "permuted outcomes" in output


def test_json_and_csv(dump, tmp_path, capsys):
    assert main(["report", str(dump), "--json", "-", "--csv", str(tmp_path / "tokens.csv")]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["groups"], summary["rollouts"], summary["tokens"], summary["skipped_lines"]) == (1, 4, "words", 1)
    assert summary["for_correct"][0] == "6"
    assert "lines or files skipped: 1" in captured.err
    with (tmp_path / "tokens.csv").open() as file:
        rows = list(csv.DictReader(file))
    six = next(row for row in rows if row["token"].strip() == "6")
    assert [six[name] for name in "abcd"] == ["2", "0", "0", "2"]
    assert float(six["p_value"]) == pytest.approx(1 / 3)
    assert float(six["key_token_value"]) == pytest.approx(1)
    assert rows[0] == six


def test_a_mistyped_input_leaves_the_last_report_alone(tmp_path, capsys):
    last = tmp_path / "report.json"
    last.write_text("{}")
    assert main(["report", str(tmp_path / "nosuch.jsonl"), "--json", str(last)]) == 1
    assert "nosuch.jsonl does not exist" in capsys.readouterr().err
    assert last.read_text() == "{}"


@pytest.mark.parametrize(("options", "prompts"), [([], 4), (["--html-groups", "3"], 3)])
def test_html(tmp_path, capsys, options, prompts):
    page = tmp_path / "report.html"
    assert main(["report", str(DATA), "--groups", "0", "--html", str(page), *options, "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert f"wrote {page}" in captured.err
    assert json.loads(captured.out)["groups"] == 4
    assert page.read_text().count('class="group"') == prompts


def test_files_may_come_after_options(dump, tmp_path, capsys):
    copy = tmp_path / "4.jsonl"
    copy.write_text(dump.read_text())
    assert main(["report", str(dump), "--json", "-", str(copy)]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == 2
    with pytest.raises(SystemExit):
        main(["report", str(dump), "--jsno", "-"])
    assert "unrecognized arguments: --jsno" in capsys.readouterr().err


def test_a_side_dump_of_training(tmp_path, capsys):
    data, _ = data_proto()
    compute(data, ktae={"dump_dir": str(tmp_path), "dump_groups": 2})
    assert main(["report", str(tmp_path), "--json", "-"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["groups"], summary["rollouts"], summary["tokens"]) == (2, 12, "token ids")


RUN = {"scale": 0.2, "term_frequency_weight": 0.001}


def report(capsys, *arguments):
    """Exit status 0, and the summary."""
    assert main(["report", *map(str, arguments), "--json", "-"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_the_settings_of_the_run_are_used_unless_others_are_given(tmp_path, capsys):
    data, batch = data_proto()
    compute(data, ktae={"dump_dir": str(tmp_path), "dump_groups": 9, **RUN})
    key_part = advantages(**batch, config=KTAEConfig(**RUN)) - advantages(**batch, config=KTAEConfig(scale=0))
    n_tokens = batch["response_mask"].sum()
    page = tmp_path / "report.html"
    observed = report(capsys, tmp_path, "--html", page)
    assert "The advantages are those that training used." in page.read_text()
    assert '"advantages":[' in page.read_text()
    assert observed["mean_abs_value"] == pytest.approx((key_part.abs().sum() / n_tokens).item())
    key_part = advantages(**batch) - advantages(**batch, config=KTAEConfig(scale=0))
    given = report(capsys, tmp_path, "--scale", "1", "--term-frequency-weight", "1", "--html", page)
    assert "GRPO's on the outcomes" in html.unescape(page.read_text())
    assert '"advantages":[' not in page.read_text()
    assert given["mean_abs_value"] == pytest.approx((key_part.abs().sum() / n_tokens).item())
    assert observed["saturated_token_share"] != given["saturated_token_share"]


def test_what_is_not_given_stays_as_the_run_had_it(tmp_path, capsys):
    compute(data_proto()[0], ktae={"dump_dir": str(tmp_path), "ignore_token_ids": [3], **RUN})
    assert report(capsys, tmp_path) == report(capsys, tmp_path, "--scale", RUN["scale"])
    assert report(capsys, tmp_path) != report(capsys, tmp_path, "--scale", RUN["scale"], "--fisher-weight", "0")


def test_runs_with_different_settings_are_not_mixed(tmp_path, capsys):
    for name, settings in (("a", RUN), ("b", {})):
        compute(data_proto()[0], ktae={"dump_dir": str(tmp_path / name), **settings})
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "is from a run with the settings KTAEConfig(" in capsys.readouterr().err
    report(capsys, tmp_path / "a", tmp_path / "b", "--scale", "1")


@pytest.mark.usefixtures("dump")
def test_a_file_that_cannot_be_read_does_not_keep_the_others_from_it(tmp_path, capsys):
    (tmp_path / "4.jsonl").write_text("")
    (tmp_path / "5.npz").write_text("no zip")
    summary = report(capsys, tmp_path)
    assert (summary["groups"], summary["skipped_lines"]) == (1, 3)
    assert any("4.jsonl is empty" in example for example in summary["skipped_examples"])


@pytest.mark.parametrize("option", ["--json", "--csv", "--html", "--training"])
def test_an_output_that_cannot_be_written(dump, tmp_path, capsys, option):
    assert main(["report", str(dump), option, str(tmp_path / "nowhere" / "out.svg")]) == 1
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--top", "0"], ["--groups", "-1"], ["--html-groups", "0"], ["--correct-threshold", "nan"], ["--scale", "x"]],
)
def test_numbers_out_of_range(dump, capsys, arguments):
    with pytest.raises(SystemExit):
        main(["report", str(dump), *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_two_outputs_on_one_stream(dump, capsys):
    assert main(["report", str(dump), "--json", "-", "--csv", "-"]) == 1
    assert "would mix" in capsys.readouterr().err


def test_a_closed_pipe():
    command = f"{sys.executable} -m ktae report {DATA} --csv - --groups 0 | head -1"
    process = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert process.stdout.startswith("group,step,token")
    assert "Error" not in process.stderr


def test_training(tmp_path, capsys):
    for step in (9, 10):
        lines = [
            {"input": "?", "output": f"{'yes' if i % 2 else 'no'} $x$ {i}", "score": i % 2, "step": step}
            for i in range(8)
        ]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("steps.svg", "steps.png"):
        assert main(["report", str(tmp_path), "--training", str(tmp_path / name)]) == 0
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "steps.svg").read_text()
    for text in ("groups with both outcomes", "permuted outcomes", "yes", "no"):
        assert f"<!-- {text} -->" in drawn, text
    assert main(["report", str(DATA), "--training", str(tmp_path / "steps.svg")]) == 1
    assert "--training: no group has a step" in capsys.readouterr().err


def test_a_rollout_does_not_steer_the_terminal(dump, capsys):
    assert main(["report", str(dump)]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "line 5: no JSON" in output


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "x", "an unknown format"),
        ("a.jsonl", "", "is empty"),
        (
            "a.jsonl",
            '{"input": "", "output": "", "score": null}\n',
            "no group of rollouts in .*line 1: no acc or score",
        ),
    ],
)
def test_errors(tmp_path, capsys, name, content, message):
    (tmp_path / name).write_text(content)
    assert main(["report", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert error.strip().startswith("ktae report:")
    assert re.search(message, error)


def test_without_the_extra(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['rich'] = None")
    command = [sys.executable, "-m", "ktae", "report", "x.jsonl"]
    process = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert process.returncode == 1
    assert "It needs the extra: pip install 'ktae[report]'" in process.stderr


def test_calibrated(tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main(["report", str(DATA), "--preset", "calibrated", "--json", "-", "--html", str(page)]) == 0
    calibrated = json.loads(capsys.readouterr().out)
    assert main(["report", str(DATA), "--json", "-"]) == 0
    published = json.loads(capsys.readouterr().out)
    assert calibrated["mean_abs_value"] != published["mean_abs_value"]
    assert calibrated["mean_abs_value"] > 1.1 * calibrated["mean_abs_value_by_chance"]
    text = html.unescape(page.read_text())
    assert "V is the mean over the token's occurrences" in text
    assert "V is as before the shift to a mean of 0.5, which is in Aᵢ." in text


def test_the_advantages_on_the_page_have_the_shift():
    config = KTAEConfig(scale=0, offset=0.25)
    group = Group("p", "", None, [Rollout(True, "a b"), Rollout(False, "a c"), Rollout(False, "d")])
    shown = content(analyse(group, None, config, np.random.default_rng(0)), config)
    plain = content(analyse(group, None, KTAEConfig(), np.random.default_rng(0)), KTAEConfig())
    for rollout, without in zip(shown["rollouts"], plain["rollouts"], strict=True):
        assert rollout["advantage"] == pytest.approx(without["advantage"] + 0.25, abs=1e-3)


def test_a_side_dump_of_a_calibrated_run(tmp_path, capsys):
    compute(data_proto()[0], ktae={"preset": "calibrated", "dump_dir": str(tmp_path)})
    assert main(["report", str(tmp_path), "--json", "-"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert main(["report", str(tmp_path), "--preset", "calibrated", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["mean_abs_value"] == own["mean_abs_value"]
    assert "V is as before the shift to a mean of 0.5" in captured.err
    assert main(["report", str(tmp_path), "--preset", "published", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_abs_value"] != own["mean_abs_value"]


def test_calibrated_for_a_run_that_had_weights(tmp_path, capsys):
    compute(data_proto()[0], ktae={"alpha": 2, "dump_dir": str(tmp_path)})
    assert main(["report", str(tmp_path), "--preset", "calibrated", "--json", "-"]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--preset", "calibrated", "--fisher-weight", "3"]) == 1
    assert 'fisher_weight=3.0 has no effect with preset="calibrated"' in capsys.readouterr().err
