import subprocess
import sys

import pytest
import toy_task

# `recorder` patches the library; it is for the processes of a training run, not to be imported for its doctests.
collect_ignore = ["recorder.py"]


@pytest.fixture(scope="session")
def assets(tmp_path_factory):
    """The toy task's model and data, written by a process of its own, as a user does it."""
    directory = tmp_path_factory.mktemp("assets")
    subprocess.run([sys.executable, toy_task.__file__, str(directory)], check=True, capture_output=True)
    return directory
