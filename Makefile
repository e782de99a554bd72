# Everything is done in .venv, which the first target that needs it makes.
#
#   make demo    the command line's demo: a trained network on real data (default dependencies only)
#   make test    all tests, then those in the simulator of GPUs
#   make test-gpu   on a machine with a GPU: its tests, and compute-sanitizer over all kernels
#   make bench-gpu  on a machine with a GPU: our figures beside their peers', in the same run
#   make check   formatting, lint, types, import layers, docs up to date
#   make bench   our figures beside their peers', in the same run
#   make setup   the environment for work on opstep

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto

.PHONY: setup demo test test-gpu check format docs bench bench-gpu clean

setup: $(VENV)/.dev

# A stamp for each set of dependencies: made once, and again when pyproject.toml changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "opstep needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(BIN)/python
	@echo "Setting up $(VENV): once, about a minute"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,dev]"
	@touch $@

demo: $(VENV)/.base
	@$(BIN)/opstep demo

test: $(VENV)/.dev
	@failed=0; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests || failed=1; \
	NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/simulator || failed=1; \
	exit $$failed

# GPU machines bring their own Python with PyTorch: GPU_PYTHON=python3 takes it as it is.
GPU_PYTHON ?= $(BIN)/python

test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.dev)
	$(GPU_PYTHON) tests/gpu/run.py

bench-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.dev)
	$(GPU_PYTHON) benchmarks/gpu/run.py

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --level error --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_house.py
	$(BIN)/python docs/generate.py --check

# What `check` would ask for: formats, applies safe fixes, writes the generated parts of docs/.
format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python docs/generate.py

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
