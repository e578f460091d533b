# Everything a checkout can do. Needs python3 (3.11 to 3.13) with venv and a network to the package registries; set-up is
# implied by every target and takes a moment when nothing changed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory

PYTHON ?=
ARGS ?=
UPGRADE ?=

# Airflow puts its plugins folder on the path itself; whatever runs outside of Airflow needs it said.
embedded = PYTHONPATH=plugins .venv/bin/python -m cdr_airflow.embedded

.PHONY: help setup check test demo up down lock docs clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while read -r target words; do printf '  make %-6s %s\n' "$$target" "$$words"; done
	@echo '  PYTHON=python3.12 chooses the Python of the environment, ARGS="-k name" goes to pytest, UPGRADE=1 to lock.'

setup: ## the environment in .venv, from the lock
	@python=$$(PYTHON='$(PYTHON)' .make/find-python) && "$$python" .make/setup.py $(if $(PYTHON),--replace)

check: setup ## format, lint, types, import contract, lock, generated pages
	@.venv/bin/python .make/check.py

test: setup ## the tests; ARGS="tests/flink -x" for some of them
	@.venv/bin/python -m pytest $(ARGS)

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

clean: ## remove the environment and all caches; recoveries in .cdr stay
	-@if [ -x .venv/bin/python ]; then $(embedded) down; fi
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find cdr_core plugins dags sql tests .make -name __pycache__ -type d -prune -exec rm -rf {} +
