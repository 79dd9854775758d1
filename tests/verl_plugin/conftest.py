import subprocess
import sys

import pytest
import toy_task
from toy_task import VERL

# For the processes of a training run, not to be imported for doctests: two of them patch the library.
collect_ignore = ["agent_loops.py", "altered.py", "recorder.py"]

# Tests whose subject some versions of veRL do not have.
if VERL < (0, 9):
    collect_ignore += [
        f"test_{name}.py" for name in ("async", "configs", "dapo", "doctor", "learning", "sessions", "transfer_queue")
    ]
if VERL != (0, 8):
    collect_ignore += ["test_main_ppo_sync.py"]


@pytest.fixture(scope="session")
def assets(tmp_path_factory):
    """The toy task's model and data, written by a process of its own, as a user does it."""
    directory = tmp_path_factory.mktemp("assets")
    subprocess.run([sys.executable, toy_task.__file__, str(directory)], check=True, capture_output=True)
    return directory
