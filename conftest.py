"""The TRL trainer is tested where TRL is installed: `make test-trl`."""

from importlib.util import find_spec

HAS_TRL = find_spec("trl") is not None
collect_ignore = [] if HAS_TRL else ["src/ktae/integrations/trl.py", "tests/trl_plugin"]


def pytest_report_header():
    return None if HAS_TRL else "TRL is not installed here: `make test-trl` tests its trainer"
