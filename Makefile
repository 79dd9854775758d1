# Needs Python 3.11 and network. Under another name: make PYTHON=/path/to/python3.11
PYTHON ?= python3.11
BIN = .venv/bin
CHECK_PYTHON = $(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11)' || \
	{ echo 'The pinned versions are for Python 3.11: make PYTHON=/path/to/python3.11'; exit 1; }

# The supported versions of veRL, and what is tested with all of them in environments of their own. 0.9.1 has more: `make
# test`. The oldest and the newest TRL have theirs, since veRL 0.9 does not start beside a TRL of today.
VERSIONS = $(shell $(PYTHON) rig/supported.py)
TRL_VERSIONS = 0.26.2 1.16.0
COMMON_TESTS = $(addprefix tests/verl_plugin/test_, training.py plugin.py versions.py options.py dataproto.py \
	base.py labels.py side_dump.py)

.PHONY: demo test test-learning test-matrix test-oldest test-trl lint bench study clean

# A real veRL training run on the CPU, then the key tokens of real rollouts, in the terminal and as a page.
demo: .venv/installed
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/key_tokens.py
	mkdir -p build
	$(BIN)/ktae report examples/data/amc23.npz --groups 0 --html build/report.html

test: .venv/installed
	$(BIN)/pytest

# Real training runs that learn, unlearn and stay: about 9 minutes. Not part of `make test`.
test-learning: .venv/installed
	$(BIN)/pytest -m learning tests/verl_plugin/test_learning.py

test-matrix: $(addprefix test-verl-, $(VERSIONS))

test-oldest: test-verl-$(firstword $(VERSIONS))

test-trl: $(addprefix test-trl-, $(TRL_VERSIONS))

test-verl-0.8.0: COMMON_TESTS += tests/verl_plugin/test_main_ppo_sync.py

test-verl-%: .matrix/verl-%/ktae
	.matrix/verl-$*/bin/pytest $(COMMON_TESTS)

test-trl-%: .matrix/trl-%/ktae
	.matrix/trl-$*/bin/pytest tests/trl_plugin

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

.venv/installed: constraints.txt pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[verl,report,dev]'
	touch $@

# An environment is kept while its pins are the same.
.PRECIOUS: .matrix/%/installed .matrix/%/ktae
.matrix/%/installed: constraints/%.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear .matrix/$*
	.matrix/$*/bin/python -m pip install --quiet --constraint $< torch
	.matrix/$*/bin/python -m pip install --quiet --requirement $<
	touch $@

.matrix/%/ktae: .matrix/%/installed pyproject.toml
	.matrix/$*/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# Ratios to veRL's own grpo, and a plot in build/.
bench: .venv/installed
	$(BIN)/python benchmarks/bench.py --plot build

# Does token credit make a model learn better? Hours: see examples/study/README.md. Runs that are there are not run again.
study: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python examples/study/study.py
	$(BIN)/python examples/study/tables.py --figures docs/figures

clean:
	rm -rf .venv .matrix
