# `make` alone prints what there is. ARGS="…" is handed on, PYTHON=python3.13 chooses the interpreter of a new .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

ifeq ($(origin PYTHON),undefined)
PYTHON := python3
endif
export PYTHON
# The settings of whoever calls must not decide what is installed, nor where.
unexport VIRTUAL_ENV UV_PROJECT_ENVIRONMENT PYTHONPATH PYTHONHOME
export UV_PYTHON_DOWNLOADS := never
# Trust whom this machine trusts (a company's proxy, say); where it keeps no list, uv has its own.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS := true
endif

BIN := .venv/bin
REQUIREMENTS := $(wildcard requirements/*.txt)
# SERVERS=no: do without the servers that have to be installed; tests that need them are skipped.
SERVERS := yes

.PHONY: help setup test chaos demo lint types docs bench lock

help: ## Print this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)$$/make \1\t\2/p' Makefile | expand -t 14

setup: .venv/.installed ## Install everything: .venv, the pinned packages, the servers for tests
ifneq ($(SERVERS),no)
	@scripts/install-servers || { echo "oncommit: not all servers are there; SERVERS=no goes on without" >&2; exit 1; }
endif

test: setup ## Run the tests against real servers: make test ARGS="-k outbox"
	$(BIN)/python -m pytest $(ARGS)

chaos: setup ## Kill and pause relays at random, then check all: make chaos SEED=7 SECONDS=60
	CHAOS_SEED="$(SEED)" CHAOS_SECONDS="$(or $(SECONDS),60)" $(BIN)/python -m pytest tests/faults $(ARGS)

demo: setup ## Show what it does, on this machine, and leave nothing behind
	$(BIN)/oncommit demo $(ARGS)

lint: .venv/.installed ## Check style and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: .venv/.installed ## Check types: mypy on the source, pyright on what users see
	$(BIN)/mypy
	$(BIN)/pyright

docs: .venv/.installed ## Build the documentation into site/, warnings are errors
	$(BIN)/zensical build --clean --strict

bench: setup ## Measure writing: make bench ARGS=--json
	$(BIN)/oncommit bench write $(ARGS)

lock: .venv/.installed ## Compile requirements/*.txt anew: make lock ARGS=--upgrade
	scripts/lock $(ARGS)

# ── How setup works: a stamp for each stage, so that the second time costs nothing ────────────────
# (scripts/install-servers sees for itself what is there.)

.venv/bin/python:
	@scripts/make-venv

.venv/.uv: requirements/boot.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/boot.txt
	@touch $@

# Added to what is there, not synchronised: a developer's own tools stay in place.
.venv/.installed: $(REQUIREMENTS) pyproject.toml | .venv/.uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes $(REQUIREMENTS:%=-r %)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
