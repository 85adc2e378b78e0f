# Two commands on a fresh machine: `make trial` and `make test`. Both make their own virtual environment first.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2
SEED   ?= 0
MINUTES ?= 30
ARGS   ?= --quick
SWEEP  ?= cover

# A file's tests share what its fixtures made, so a file stays in one worker, which takes the dearest that is left
# (tests/order.py). A worker that dies prints its stacks and is replaced, but not for ever. Tests start a few hundred
# processes: where a machine forbids bytecode files, each would compile this package anew.
PYTEST  = PYTHONFAULTHANDLER=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --max-worker-restart 2 --sweep $(SWEEP)

# Adaptive eager is decided when Python starts, so its tests are a pytest run of their own. Both run whatever becomes of the first.
ADAPTIVE := SHAKEDOWN_ADAPTIVE=1

.PHONY: trial test sweep test-adaptive selftest check bench fuzz clean
trial: $(STAMP)
	$(BIN)/shakedown run decoder $(ARGS)

test: $(STAMP)
	first=0; second=0; \
	$(PYTEST) --ignore tests/adaptive || first=$$?; \
	$(ADAPTIVE) $(PYTEST) tests/adaptive || second=$$?; \
	echo "pytest: $$first (all but adaptive eager), $$second (adaptive eager)"; \
	test $$first -eq 0 -a $$second -eq 0

# The device's whole suite once more, with everything recorded: where the two modes differ, a test of plain eager fails.
test-adaptive: $(STAMP)
	$(ADAPTIVE) $(PYTEST) tests/neuron tests/adaptive

# Every case of the large products of operators, dtypes and layouts, and both of PyTorch's databases: an hour or two.
sweep: SWEEP := all
sweep: test

# Every fault and a hundred healthy devices: docs/selftest.md is made by it. Started again, it goes on.
selftest: $(STAMP)
	$(BIN)/shakedown selftest --healthy 100 --jobs $(JOBS) --out shakedown-runs/selftest --write docs/selftest.md

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --calls 100000 --seed $(SEED) --minutes $(MINUTES) --json fuzz-$(SEED).json

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first, so that the index's default build is chosen by TORCH and not by a dependency range; and named again, so that
# nothing that wants a newer one (torchvision does) replaces it.
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "shakedown needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet "$(TORCH)" --editable ".[dev]"
	@# torchvision's operators belong to one build of torch. Beside another, Transformers cannot be imported either.
	$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/python -m pip uninstall --quiet --yes torchvision
	touch $(STAMP)
