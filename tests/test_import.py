"""The core is torch and numpy."""

import subprocess
import sys


def test_importing_ktae_imports_no_framework():
    names = ("verl", "ray", "transformers", "tensordict", "scipy")
    code = f"import sys, ktae; print([name for name in {names} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
