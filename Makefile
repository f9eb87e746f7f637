# Everything from a clean checkout: `make compare` runs the main job, `make test` the checks.
# Needs only Python 3.11 or newer and make; the environment lives in .venv.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEV := .venv/.ready-dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup compare docs test test-all test-least lint types unit unit-all soak browser lock bench clean

help:
	@echo "make compare   set up, then run the paper's comparison on the digits data (under a minute)"
	@echo "make test      set up, then lint, type check and test, in some minutes"
	@echo "make test-all  the same, with the long suites: networks, a browser, machines that fail"
	@echo "make docs      build the site into build/docs, without a network"
	@echo "make bench     measure the trainers and the planner; results in docs/benchmarks.md"
	@echo "make clean     remove the environment and the outputs"

setup: $(DEV)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "everfed needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	@touch $@

# What the checks need on top; whoever only wants to run things is spared it.
$(DEV): $(READY)
	$(INSTALL) -e '.[dev]'
	@touch $@

compare: $(READY)
	$(BIN)/everfed compare

test: lint types unit

test-all: lint types unit-all

# Warnings are errors: a page that nobody links to, a name that does not exist, a notebook that fails.
docs: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -n -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

# Two files at a time, each on one core: some tests wait for a network more than they compute. In the order of their
# names, since those begin in the middle; xdist itself would leave them, being few, for the end. A test that hangs is
# ended and named after ten minutes, far beyond what the longest takes on a busy machine.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --timeout 600

unit: $(DEV) browser
	$(PYTEST) -m 'not long' --hypothesis-profile quick

unit-all: $(DEV) browser
	$(PYTEST)

# Signals at 50 random moments of a sweep, and drawn cases that no run has tried before.
soak: $(DEV)
	EVERFED_SOAK=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/test_stopping.py
	$(PYTEST) --hypothesis-profile soak $(shell grep -l hypothesis tests/test_*.py)

# The oldest versions that pyproject.toml allows, in an environment of their own. What stands in for another system
# (only_unix) is left out: the oldest platformdirs asks which system it is in another way.
LEAST := .venv-least/bin
test-least: constraints-least.txt
	$(PYTHON) -m venv .venv-least
	$(LEAST)/python -m pip install --quiet --disable-pip-version-check -c constraints-least.txt -e '.[solar]' \
		pytest hypothesis jsonschema
	OMP_NUM_THREADS=1 $(LEAST)/python -m pytest -m 'not long' -k 'not only_unix' $(LEAST_TESTS)

LEAST_TESTS := $(addprefix tests/test_,$(addsuffix .py,config data learning packaging portable random report \
	same_results stats stored_traces theory trace_files traces))

# The report's tests open it in a real browser. Without one they are skipped, and say so.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update && \
		apt-get -qq install -y --no-install-recommends chromium >/dev/null; } || \
		echo "no Chromium here: the tests that open the report in a browser will be skipped"

# The development environment with hashes; needs uv.
lock:
	uv pip compile --quiet pyproject.toml --extra dev --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
		--torch-backend cpu -c constraints.txt --generate-hashes --no-header --no-annotate \
		--no-emit-package torch -o requirements-dev.lock

bench: $(READY)
	$(BIN)/python benchmarks/trainers.py
	$(BIN)/python benchmarks/planning.py

clean:
	rm -rf .venv .venv-least build everfed-out docs/reference/generated .mypy_cache .ruff_cache .pytest_cache .hypothesis
