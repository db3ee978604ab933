# make demo: install, train a front for the paper's fleet, show it.   make test: install, run the tests.
# Both need python3 (3.11 or newer) and make, and install into .venv.   make test-all: run the long tests too.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo studio test test-all test-fleet test-soak test-wheel extras lint format benchmark benchmark-training calibrate clean

demo: .venv/ready
	if test -e runs/demo/run.json; then $(BIN)/tandem train --resume runs/demo; \
	else $(BIN)/tandem train paper --preset quick --out runs/demo; fi
	$(BIN)/tandem front runs/demo
	$(BIN)/tandem pick runs/demo --prefer accuracy=0.5,latency=0.3,energy=0.2
	@echo
	@echo "To see the front in a browser: make studio"

# Show the runs in a browser.
studio: .venv/ready-studio
	$(BIN)/tandem studio runs

test: .venv/ready-dev
	$(BIN)/python -m pytest

# Everything: the slow tests, the extras (PyTorch, MORL-Baselines, pymoo), Flower on real processes, and the wheel.
# Programs of the quick tests take longer to optimise than to run; those of the slow tests do not.
test-all: extras test-wheel
	$(BIN)/python -m pytest
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 WANDB_MODE=disabled \
		$(BIN)/python -m pytest -m '(slow or extras) and not flower and not soak'
	$(MAKE) test-fleet

# Flower and real processes alone.
test-fleet: extras
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest -n 0 -m flower tests/fleet tests/live

# The service under a hundred kills on each database and over ten thousand rounds, all cells of the calibration, the
# longest experiments, and faults of a live fleet: some forty minutes.
test-soak: extras
	$(BIN)/python -m pytest -n 0 -m soak tests/serving tests/experiments tests/live

# A wheel works in an empty environment outside the repository.
test-wheel: .venv/bin/python
	rm -rf build
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$$folder" . && \
	$(PYTHON) -m venv "$$folder/venv" && \
	"$$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		"$$folder"/*.whl && \
	cd "$$folder" && export XDG_CACHE_HOME="$$folder/cache" && \
	venv/bin/tandem train paper --preset quick --budget 40000 --out run && \
	venv/bin/tandem simulate paper --task digits --out simulation

# MORL-Baselines compiles pycddlib, which needs a C compiler and libgmp (Debian: gcc, libgmp-dev).
extras: .venv/ready-extras

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
	$(BIN)/python benchmarks/training.py

calibrate: .venv/ready
	$(BIN)/python studies/preset_search.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tandem needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/ready: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable .
	touch $@

.venv/ready-studio: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[studio]'
	touch $@ .venv/ready

.venv/ready-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[dev]'
	touch $@ .venv/ready .venv/ready-studio

.venv/ready-extras: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[dev,flower,morl]'
	touch $@ .venv/ready .venv/ready-studio .venv/ready-dev

clean:
	rm -rf .venv build fleets .cache simulations calibrations runs/demo
