# All project commands. `make demo` and `make test` need no service outside this machine.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UV     := $(shell command -v uv 2>/dev/null)

# The environment is rebuilt when its inputs change.
INSTALLED := $(VENV)/.installed-core
DEV       := $(VENV)/.installed-dev
COMPILED  := $(VENV)/.compiled
EXAMPLES  := $(patsubst %/pyproject.toml,%,$(wildcard examples/*/pyproject.toml))
INPUTS    := pyproject.toml $(wildcard examples/*/pyproject.toml)

ifdef UV
CREATE  = $(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python
else
CREATE  = $(PYTHON) -m venv $(VENV)
INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check
endif

.PHONY: help demo test unit exploits lint style types format bench mutate docs setup system clean

help:  ## show this help
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## set up, then evaluate the example packages
	@$(BIN)/python examples/demo.py

# More workers than cores, because many tests wait for subprocesses. Bytecode is written, so that it is compiled once.
test: WORKERS ?= 7
unit: WORKERS ?= 5
test unit: export PYTHONDONTWRITEBYTECODE :=

# What fails beside others runs once more, alone, and must pass there. Failures of an earlier run do not count.
test: $(DEV) system  ## set up, lint, check types and import rules, run all tests
	@$(MAKE) --no-print-directory -j2 types style $(COMPILED)
	@rm -f .pytest_cache/v/cache/lastfailed
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --hypothesis-profile=thorough || $(BIN)/python scripts/again.py

unit: $(COMPILED)  ## run only the quick tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow and not engine and not sandbox"

# Hours on two cores, in batches. ONLY="git and services" runs what is called so, PART=3/20 every twentieth test, by chance.
exploits: WORKERS ?= 3
exploits: $(DEV) system  ## attack verification and planted holes in every way, user, rung and sandbox that the tests know (long)
	@EXPLOITS=all EXPLOITS_PART=$(PART) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/exploits tests/verifier/test_python_lookups.py tests/evidence/holes $(if $(ONLY),-k "$(ONLY)")

lint: style types  ## check style, types and import rules

style: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo

types: $(DEV)
	@$(BIN)/mypy

format: $(DEV)  ## format the code
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

bench: $(DEV)  ## run the benchmarks and print the tables
	@missed=0; for script in benchmarks/*.py; do $(BIN)/python $$script || missed=1; done; exit $$missed

# [tool.mutmut] in pyproject.toml lists modules and tests; MODULES="benchflow.rewards.*" runs some of the modules.
mutate: $(DEV)  ## list small changes of the code that no test notices (long)
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || $(INSTALL) -e '.[mutate]'
	@$(BIN)/python scripts/mutate.py $(MODULES)

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(DEV)  ## build the documentation into site/
	@$(BIN)/mkdocs build --strict

setup: $(DEV)  ## set up for development

system:  ## install the Debian packages that the tests need (as root), or list them
	@scripts/system-packages

clean:  ## remove the environment and build output
	rm -rf $(VENV) site dist mutants .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# A Python that is too old, or a creation that fails, leaves nothing behind that the next `make` would take for done.
$(BIN)/python:
	@if command -v $(PYTHON) >/dev/null && ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  echo "benchcube needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1); name another one, such as: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; fi
	@existed=$$(ls -d $(VENV) 2>/dev/null); $(CREATE) || { [ -n "$$existed" ] || rm -rf $(VENV); exit 1; }

$(INSTALLED): $(INPUTS) | $(BIN)/python
	@echo "Installing benchcube into $(VENV)"
	@$(INSTALL) -e . $(foreach example,$(EXAMPLES),-e $(example))
	@touch $@

$(DEV): $(INPUTS) | $(BIN)/python
	@echo "Installing benchcube with its development tools into $(VENV)"
	@$(INSTALL) -e '.[dev]' $(foreach example,$(EXAMPLES),-e $(example))
	@touch $@ $(INSTALLED)

# Once for all workers, which would each compile everything at the same time.
$(COMPILED): export PYTHONDONTWRITEBYTECODE :=
$(COMPILED): $(DEV)
	@if $(BIN)/python -m pytest -qq --collect-only -p no:cacheprovider > /dev/null; then touch $@; fi
