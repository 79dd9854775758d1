# Needs Python 3.11 and network. Elsewhere than here: make PYTHON=/path/to/python3.11
PYTHON ?= python3.11
BIN = .venv/bin

.PHONY: demo test test-learning lint bench clean

# A real veRL training run on the CPU, then the key tokens of real rollouts.
demo: .venv/installed
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/key_tokens.py

test: .venv/installed
	$(BIN)/pytest

# Real training runs that learn, unlearn and stay: about 9 minutes. Not part of `make test`.
test-learning: .venv/installed
	$(BIN)/pytest -m learning tests/verl_plugin/test_learning.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

.venv/installed: constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11)' || \
		{ echo 'The pinned versions are for Python 3.11: make PYTHON=/path/to/python3.11'; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[verl,dev]'
	touch $@

# Ratios to veRL's own grpo, and a plot in build/.
bench: .venv/installed
	$(BIN)/python benchmarks/bench.py --plot build

clean:
	rm -rf .venv
