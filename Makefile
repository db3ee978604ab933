# make demo: install, train a front for the paper's fleet, show it.   make test: install, pass the tests.
# Both need python3 (3.11 or newer) and make, and install into .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test extras test-extras test-fleet lint format benchmark benchmark-training calibrate clean

demo: .venv/ready
	if test -e runs/demo/run.json; then $(BIN)/tandem train --resume runs/demo; \
	else $(BIN)/tandem train paper --preset quick --out runs/demo; fi
	$(BIN)/tandem front runs/demo
	$(BIN)/tandem pick runs/demo --prefer accuracy=0.5,latency=0.3,energy=0.2

test: .venv/ready-dev
	$(BIN)/python -m pytest

# What needs PyTorch, MORL-Baselines and pymoo has a virtual environment of its own.
extras:
	test -d .venv-extras || $(PYTHON) -m venv .venv-extras
	.venv-extras/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,morl]'

test-extras: extras
	WANDB_MODE=disabled .venv-extras/bin/python -m pytest -n 0 -m extras tests/extras tests/learn/test_evolution.py

# A fleet over Flower, as real processes; in a virtual environment of its own.
test-fleet:
	test -d .venv-fleet || $(PYTHON) -m venv .venv-fleet
	.venv-fleet/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,flower]'
	.venv-fleet/bin/python -m pytest -n 0 -m flower tests/fleet

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

# Rounds per second of training, beside MORL-Baselines on the same machine.
benchmark-training: extras
	.venv-extras/bin/python benchmarks/training.py

calibrate: .venv/ready
	$(BIN)/python studies/preset_search.py

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
	rm -rf .venv .venv-extras .venv-fleet fleets .cache simulations calibrations runs/demo
