# Everything is done in .venv, which the first target that needs it makes.
#
#   make demo    the command line's demo: a trained network on real data (default dependencies only)
#   make test    tests, a part of the cases where many are alike, then the unit tests of the extension
#   make test-all  the same with all cases and what takes long; PART=2/6 takes the second of six parts of it
#   make test-versions  `make test` with the lowest and the newest versions of packages, each in a new environment
#   make test-gpu   on a machine with a GPU: its tests, and compute-sanitizer over all kernels
#   make bench-gpu  on a machine with a GPU: our figures beside their peers', in the same run
#   make test-vscode   the extension in a real VS Code in headless Chromium (needs Node.js 20, npm, Chromium)
#   make pictures      takes docs/images/vscode-*.png there
#   make bench-vscode  how fast it starts, steps and shows
#   make check   formatting, lint, types, import layers, docs up to date
#   make vsix    the extension for VS Code, as a file to install (needs Node.js 20 and npm)
#   make bench   our figures beside their peers', in the same run
#   make setup   the environment for work on opstep

# The hundreds of programs that tests start read modules that were compiled once.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto
CASES ?= some
PART ?=

.PHONY: setup demo test test-all test-versions test-gpu test-vscode pictures bench-vscode workbench check format docs bench bench-gpu vsix clean

setup: $(VENV)/.dev

# Else Python, started in the folder above, takes the checkout for an empty package.
EDITABLE := --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable

# A stamp for each set of dependencies: made once, and again when pyproject.toml changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "opstep needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(BIN)/python
	@echo "Setting up $(VENV): once, about a minute"
	$(BIN)/python -m pip install $(EDITABLE) .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(BIN)/python -m pip install $(EDITABLE) ".[test,dev]"
	@touch $@

# The extension has a world of its own, npm's. Where there is no Node.js the rest works, and says so.
EXTENSION := vscode-extension
NODE := $(shell command -v npm >/dev/null && node -e 'process.exit(+(parseInt(process.versions.node) < 20))' && echo yes)
SKIPPED := @echo "$(EXTENSION): skipped, for there is no Node.js 20 with npm here"

$(EXTENSION)/node_modules/.stamp: $(EXTENSION)/package-lock.json
	cd $(EXTENSION) && npm ci --no-audit --no-fund
	@touch $@

vsix: $(EXTENSION)/node_modules/.stamp
	cd $(EXTENSION) && npm run package

demo: $(VENV)/.base
	@$(BIN)/opstep demo

test-all: CASES := all
test-all: test

test: $(VENV)/.dev $(if $(NODE),$(EXTENSION)/node_modules/.stamp)
	@failed=0; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cases $(CASES) $(if $(PART),--part $(PART)) \
	  --durations 25 --durations-min 5 tests || failed=1; \
	if [ -n "$(NODE)" ]; then (cd $(EXTENSION) && npm test) || failed=1; fi; \
	exit $$failed
	$(if $(NODE),,$(SKIPPED))

# VERSIONS=lowest or newest takes one of them, with OPTIONS for pytest.
VERSIONS ?= lowest newest
OPTIONS ?= -n $(WORKERS) --dist worksteal --cases some tests

test-versions:
	$(PYTHON) tests/versions.py $(VERSIONS) $(OPTIONS)

# The extension as a person installs it, in the editor that it is for; CONTRIBUTING.md tells how the suite works.
WORKBENCH := cd $(EXTENSION)/e2e && OPSTEP_PYTHON=$(abspath $(BIN)/python) npm run --silent

workbench: $(VENV)/.dev vsix
	$(EXTENSION)/e2e/install.sh

test-vscode: workbench
	$(WORKBENCH) test

pictures: workbench
	export OPSTEP_PICTURES=1; $(WORKBENCH) test -- pictures

bench-vscode: workbench
	$(WORKBENCH) bench

# GPU machines bring their own Python with PyTorch: GPU_PYTHON=python3 takes it as it is.
GPU_PYTHON ?= $(BIN)/python

test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.dev)
	$(GPU_PYTHON) tests/gpu/run.py

bench-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.dev)
	$(GPU_PYTHON) benchmarks/gpu/run.py
	$(GPU_PYTHON) benchmarks/op_sweep.py --device cuda --dtype f32,bf16 --sizes 0.25,1,4 --warm 8 --json build/op_sweep.jsonl

check: $(VENV)/.dev $(if $(NODE),$(EXTENSION)/node_modules/.stamp)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --level error --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q tests/whole/test_layers.py tests/whole/test_house.py
	$(BIN)/python docs/generate.py --check
	$(if $(NODE),cd $(EXTENSION) && npm run check,$(SKIPPED))

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
	rm -rf $(EXTENSION)/node_modules $(EXTENSION)/dist $(EXTENSION)/*.vsix
	rm -rf $(EXTENSION)/e2e/node_modules $(EXTENSION)/e2e/build
