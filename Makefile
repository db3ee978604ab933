# make demo: install, simulate the paper's fleet, show the result.   make test: install, pass the tests.
# Both need python3 (3.11 or newer) and make, and install into .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-extras lint format benchmark calibrate clean

demo: .venv/ready
	$(BIN)/tandem simulate paper

test: .venv/ready-dev
	$(BIN)/python -m pytest

# The tests that need PyTorch and MORL-Baselines, in a virtual environment of their own.
test-extras:
	test -d .venv-extras || $(PYTHON) -m venv .venv-extras
	.venv-extras/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,morl]'
	WANDB_MODE=disabled .venv-extras/bin/python -m pytest -n 0 -m extras tests/extras

lint: .venv/ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

benchmark: .venv/ready
	$(BIN)/python benchmarks/simulator.py

calibrate: .venv/ready
	$(BIN)/python scripts/calibrate.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tandem needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/ready: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable .
	touch $@

.venv/ready-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[dev]'
	touch $@ .venv/ready

clean:
	rm -rf .venv .venv-extras .cache simulations
