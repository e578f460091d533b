# Everything a checkout can do. Needs python3 (3.11 to 3.13) with venv and a network to the package registries; set-up is
# implied by every target and takes a moment when nothing changed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory

PYTHON ?=
ARGS ?=
BYTES ?=
EXAMPLES ?=
MINUTES ?=
RUNS ?=
SCREENSHOTS ?=
SEED ?=
UPGRADE ?=
PROCESSES ?=

# Airflow puts its plugins folder on the path itself; whatever runs outside of Airflow needs it said.
embedded = PYTHONPATH=plugins .venv/bin/python -m cdr_airflow.embedded

# Tests by markers; pyproject.toml says what they mean. A lane of pytest's own, as in ARGS="-m spark", wins.
services = spark or airflow or flink or s3 or postgres or browser
fast = not ($(services) or phases or tools or thorough or slow)
pytest = .venv/bin/python -m pytest
# One process more than there are cores: tests of real services wait more than they work.
parallel = -n $(or $(PROCESSES),$$(($$(nproc) + 1))) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: help setup check test test-fast test-slow test-all test-commit test-wheel test-flink test-airflow test-browser coverage fuzz seeds schedules mutants soak-clicks bench demo up down lock docs site clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while read -r target words; do printf '  make %-12s %s\n' "$$target" "$$words"; done
	@echo '  PYTHON=python3.12 chooses the Python of the environment, ARGS="-k name" goes to pytest, UPGRADE=1 to lock.'

setup: ## the environment in .venv, from the lock
	@python=$$(PYTHON='$(PYTHON)' .make/find-python) && "$$python" .make/setup.py $(if $(PYTHON),--replace)

check: setup ## format, lint, types, import contract, lock, links, generated pages
	@.venv/bin/python .make/check.py

test: setup ## every real part once; ARGS="tests/flink -x" for some of them
	@$(pytest) -m 'not (slow or browser)' $(or $(ARGS),$(parallel))

# tests/airflow and tests/page have no test in this lane, and importing Airflow would take a tenth of its time.
test-fast: setup ## the tests that start no service and run no phase, in a minute
	@$(pytest) -m '$(fast)' $(or $(ARGS),-n $(or $(PROCESSES),$$(nproc)) --maxprocesses 4 --dist loadfile --ignore tests/airflow --ignore tests/page)

test-slow: setup ## what takes too long for test, but not minutes
	@$(pytest) -m 'slow and not (soak or browser)' $(or $(ARGS),$(parallel))

test-all: setup ## everything, for hours; fetches about 900 MB the first time
	@$(pytest) -m 'not browser' $(or $(ARGS),$(parallel))
	@$(if $(ARGS),,$(MAKE) test-browser)

coverage: setup ## branch coverage by the tests that start no service; ARGS="tests/drain" for some of them
	@$(pytest) -m 'not ($(services) or tools or slow)' --cov --cov-report=term:skip-covered --cov-report=html:.cdr/coverage $(or $(ARGS),-q $(parallel) --ignore tests/airflow --ignore tests/page)

test-commit: setup ## two committers for 200 rounds at every target, all 16 ways to one result, the deep explorations
	@$(pytest) $(or $(ARGS),tests/commit/test_two_committers.py tests/commit/test_differential.py tests/commit/test_differential_spark.py tests/commit/test_exploration.py)

test-wheel: setup ## the wheel, installed by pip into an empty environment, recovers outside of the checkout
	@$(pytest) $(or $(ARGS),tests/project/test_wheel.py)

test-flink: setup ## all tests against a real Flink; fetches about 900 MB the first time
	@$(pytest) $(or $(ARGS),tests/flink)

test-airflow: setup ## everything that can be done to a run in a real Airflow
	@$(pytest) $(or $(ARGS),tests/airflow)

test-browser: setup ## the form and the page in a real Chromium, which must be there; SCREENSHOTS=1 keeps pictures
	@SCREENSHOTS='$(SCREENSHOTS)' .venv/bin/python -m tests.browser $(ARGS)

fuzz: setup ## hostile bytes against the readers; EXAMPLES=200000, goes on where it was interrupted
	@.venv/bin/python -m tests.flink_formats.fuzz --record docs/fuzz-runs.json $(if $(EXAMPLES),--examples $(EXAMPLES))

seeds: setup ## RUNS=1498 recoveries with crashes and checkpoints on busy cores, counted in docs/seeds-runs.json
	@NUMBA_CACHE_DIR="$${NUMBA_CACHE_DIR:-$(CURDIR)/.cdr/numba}" .venv/bin/python -m tests.seeds $(if $(RUNS),--runs $(RUNS)) $(ARGS)

schedules: setup ## RUNS=10000 random schedules of the drain and its checkpoints, counted in docs/schedules-runs.json
	@.venv/bin/python -m tests.drain.simulate --record docs/schedules-runs.json $(if $(RUNS),--runs $(RUNS)) $(ARGS)

mutants: setup ## small faults put into a copy of the code, each of which a test must notice, counted in docs/mutants-runs.json
	@.venv/bin/python -m tests.mutants --record docs/mutants-runs.json $(if $(SEED),--seed $(SEED)) $(ARGS)

soak-clicks: setup ## MINUTES=30 of clicking Clear and Trigger while Airflow recovers BYTES=1GB, counted in docs/soak-clicks.json
	@.venv/bin/python -m tests.airflow.soak_clicks --record docs/soak-clicks.json $(if $(MINUTES),--minutes $(MINUTES)) $(if $(BYTES),--bytes $(BYTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: setup ## measure beside baselines of the same run; ARGS="kernels --scratch DIR" for some; into docs/benchmarks
	@.venv/bin/python -m tests.benchmarks $(ARGS)

demo: setup ## recover the shipped checkpoint from 3 to 2 through Airflow and Spark
	@$(embedded) demo

up: setup ## Airflow with its UI on loopback, the DAGs unpaused
	@$(embedded) up

down: ## end what up started
	@if [ -x .venv/bin/python ]; then $(embedded) down; else echo 'nothing is set up here, so nothing runs'; fi

lock: setup ## requirements.lock anew from pyproject.toml; UPGRADE=1 also moves what is pinned
	@.venv/bin/python .make/lock.py $(if $(UPGRADE),--upgrade)

docs: setup ## the pages that are generated from the code
	@.venv/bin/python .make/settings_reference.py
	@.venv/bin/python .make/seeds_reference.py

site: setup ## the docs as a site in build/site; a broken link fails it
	@PYTHONPATH=.make NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

clean: ## remove the environment and all caches; recoveries in .cdr stay
	-@if [ -x .venv/bin/python ]; then $(embedded) down; fi
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find cdr_core plugins dags sql tests .make -name __pycache__ -type d -prune -exec rm -rf {} +
