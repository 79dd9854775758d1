"""Which versions of veRL are supported: what is said, what is run, and what happens with others."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from supported import TRAINERS

ROOT = Path(__file__).resolve().parents[2]
COMMON = ["trainer.ppo.ray_trainer", "trainer.ppo.metric_utils", "utils.config"]
V1, SYNC = "trainer.ppo.v1.trainer_base", "trainer.main_ppo_sync"


def load_plug_in_with(tmp_path, version, modules):
    """Import the plug-in in a process whose veRL is made of empty modules."""
    for name in modules:
        file = tmp_path.joinpath("verl", *name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for directory in [tmp_path / "verl", *(tmp_path / "verl").rglob("*/")]:
        (directory / "__init__.py").touch()
    metadata = tmp_path / f"verl-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n")
    return subprocess.run(
        [sys.executable, "-c", "import ktae.integrations.verl, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )


@pytest.mark.parametrize(
    ("version", "modules"),
    [
        ("0.6.0", COMMON),
        ("0.7.2.dev0", COMMON),
        ("0.8.0", [*COMMON, SYNC]),
        ("0.9.0.dev0", [*COMMON, V1]),
        ("0.9.2", [*COMMON, V1]),
        ("1.0", [*COMMON, V1]),
    ],
)
def test_a_version_that_has_its_trainers_is_accepted_in_silence(tmp_path, version, modules):
    process = load_plug_in_with(tmp_path, version, modules)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert "verl.trainer" not in process.stdout.split()  # looking for modules imports none


@pytest.mark.parametrize(
    ("version", "modules", "missing"),
    [
        ("0.8.1", COMMON, SYNC),
        ("0.9.0", COMMON, V1),
        ("0.10.0", COMMON, V1),
        ("0.10.0", [*COMMON[1:], V1], "trainer.ppo.ray_trainer"),
    ],
)
def test_a_trainer_that_has_moved_is_named(tmp_path, version, modules, missing):
    process = load_plug_in_with(tmp_path, version, modules)
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("which ktae wraps") == 1
    assert f"verl {version} has no verl.{missing}, which ktae wraps to reach the token ids" in process.stderr


@pytest.mark.parametrize("version", ["0.4.1", "0.5.0"])
def test_a_version_that_refuses_foreign_estimators(tmp_path, version):
    process = load_plug_in_with(tmp_path, version, COMMON)
    assert process.returncode != 0
    assert f"verl {version} is not supported by ktae: its trainer knows its own advantage estimators" in process.stderr
    assert "NotImplementedError for adv_estimator=ktae. Install verl>=0.6.1" in process.stderr


def test_the_readme_lists_what_is_run():
    table = re.search(r"## Supported versions.*?\n\|[- |]+\|\n(.*?)\n\n", (ROOT / "README.md").read_text(), re.DOTALL)
    assert table is not None
    listed = {}
    for row in table[1].splitlines():
        version, trainers, *_ = [cell.strip() for cell in row.strip("|").split("|")]
        listed[version] = re.findall(r"\*\*(\w+)\*\*", trainers)
    assert listed == TRAINERS


@pytest.mark.parametrize("version", TRAINERS)
def test_the_pins_are_of_this_version(version):
    pins = (ROOT / "constraints" / f"verl-{version}.txt").read_text().splitlines()
    assert f"verl=={version}" in pins
    unpinned = [line for line in pins if not re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line)]
    assert unpinned == []
