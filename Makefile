# `make run` and `make test` need python3 (3.11 or newer), make and pip; they set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# More options for pytest, as in `make test PYTEST_FLAGS=--randomly-seed=7`.
PYTEST_FLAGS ?=

# The caller's own environment must not leak into ours.
unexport VIRTUAL_ENV
unexport PYTHONPATH
unexport PYTHONHOME
# Hundreds of processes are started by tests: without bytecode each of them would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The variable pins the build backend too, which -c does not reach. Compiled afterwards, on all cores.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt $(PY) -m pip install --quiet --no-compile -c constraints.txt
SETUP := pyproject.toml constraints.txt src/redrive/_version.py
TYPED := $(wildcard src tests proofs conftest.py examples bench bin/steady)

.DEFAULT_GOAL := help
.PHONY: help run test test-fast check prove docs bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

run: $(VENV)/dev.stamp ## Set up if needed, then take the tour: redrive demo
	@$(VENV)/bin/redrive demo

# Work stealing, because one engine's conformance tests are one big file: loadfile would leave a core idle.
# Three for two cores: tests also wait, for servers, threads and processes. More of them only get in each other's way.
test: $(VENV)/dev.stamp ## Set up if needed, then run the whole suite on two cores
	$(PY) -m pytest -n 3 --dist worksteal $(PYTEST_FLAGS)

test-fast: $(VENV)/dev.stamp ## The suite without slow tests
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow and not prove" $(PYTEST_FLAGS)

check: $(VENV)/check.stamp ## Lint, format, types and layers: the gate beside the tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(TYPED)
	$(VENV)/bin/lint-imports --no-logo
	@# Decisions are built by core.decide and core.decide_letter alone; stores read them, and their tests make them.
	@! grep -rnE '\bTo(Done|Ready|Dead|Cancelled)\(' src/redrive --include=*.py --exclude-dir=core --exclude-dir=stores --exclude-dir=testing \
		|| { echo "redrive: a decision is built outside core: use an Outcome with decide or decide_letter" >&2; exit 1; }

prove: $(VENV)/dev.stamp ## The proofs: real kills, outages, power cuts, races of processes; a summary per promise
	$(PY) -m pytest proofs -m "" -n 3 --dist worksteal $(PYTEST_FLAGS)

docs: $(VENV)/docs.stamp ## The pages of docs/ as a site: build/site/index.html; fails on a link that leads nowhere
	$(VENV)/bin/zensical build --clean --strict --config-file mkdocs.yml

bench: $(VENV)/bench.stamp ## Measure redrive beside its peers; STORE=postgres or redis; ROWS=growth: with a million items
	$(PY) -m bench $(if $(STORE),--store $(STORE)) $(if $(ROWS),--rows $(ROWS))

clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist htmlcov .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*
	find src tests proofs examples bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/created:
	@command -v "$(PYTHON)" >/dev/null || { echo "redrive: '$(PYTHON)' was not found. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "redrive: needs Python 3.11 or newer, but '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1). Name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { echo "redrive: '$(PYTHON)' cannot make virtual environments (venv or ensurepip is missing). On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "redrive: making $(VENV)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

$(VENV)/dev.stamp: $(SETUP) | $(VENV)/created
	@echo "redrive: installing into $(VENV)"
	@# Python's own pip may be years old, and takes half as long again.
	@$(PIP_INSTALL) --upgrade pip
	@$(PIP_INSTALL) -e '.[dev]'
	@# Of the large packages only what is imported is compiled, then.
	@$(PY) -m compileall -qq -j 0 -x '/(pip|django|sqlalchemy|pygments|setuptools)/' $(VENV)/lib src || true
	@touch $@

$(VENV)/check.stamp: $(VENV)/dev.stamp
	@echo "redrive: installing what checks the code"
	@$(PIP_INSTALL) -e '.[check]'
	@touch $@

$(VENV)/docs.stamp: $(VENV)/dev.stamp
	@echo "redrive: installing what builds the site"
	@$(PIP_INSTALL) -e '.[docs]'
	@touch $@

# The peers need older drivers than ours, so they live apart.
$(VENV)/bench.stamp: $(VENV)/dev.stamp bench/constraints.txt
	@echo "redrive: installing the peers into $(VENV)/peers"
	@$(PY) -m venv --clear $(VENV)/peers
	@PIP_CONSTRAINT=bench/constraints.txt $(VENV)/peers/bin/python -m pip install --quiet -e '.[bench]'
	@touch $@
