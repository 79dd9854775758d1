import subprocess
import sys

import pytest
import toy_task

# For the processes of a training run, not to be imported for doctests: two of them patch the library.
collect_ignore = ["agent_loops.py", "altered.py", "recorder.py"]


@pytest.fixture(scope="session")
def assets(tmp_path_factory):
    """The toy task's model and data, written by a process of its own, as a user does it."""
    directory = tmp_path_factory.mktemp("assets")
    subprocess.run([sys.executable, toy_task.__file__, str(directory)], check=True, capture_output=True)
    return directory
