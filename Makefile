# halfmq. Two commands for a newcomer:
#   make demo     orders into a database, messages through the broker, tables out of Spark, under kill -9 (BASKETS=all for everything)
#   make test     everything that is checked
# Both make .venv themselves from requirements.lock; they need Python >= 3.11, make and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BASKETS ?= 20000
DB ?= sqlite
DEMO_ARGS ?=
# Who waits at a terminal sees what is being installed.
QUIET := $(shell test -t 2 || echo --quiet)
# What stands in PYTHONPATH counts as installed for pip, and would be left out of the environment. Without bytecode on disk
# every process that a test starts compiles all it imports.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-all lint format types layers audit bench mutants lock clean

help:
	@echo "make demo [BASKETS=20000|all] [DB=sqlite|postgres]   the main job, on real data, with crashes, reconciled to the cent"
	@echo "make test                                            the gate, about 27 minutes on two cores (needs a JDK and Maven for the Java clients, PostgreSQL, MariaDB, RabbitMQ, Prometheus, openssl, curl and valgrind)"
	@echo "make test-fast                                       what to run while writing: under 90 seconds"
	@echo "make test-all                                        also what is rarer or slower: about an hour; see docs/testing.md"
	@echo "make mutants [MUTANTS=pattern]                        change the code in small ways and see which tests notice; hours"
	@echo "make audit                                           known weaknesses in the code, known vulnerabilities of the locked packages (asks PyPI)"
	@echo "make site                                             the documentation as web pages with search, in build/site"
	@echo "make bench                                           transaction benchmark with baseline, JSON in build/bench"

$(READY): requirements.lock pyproject.toml packages/faststream-halfmq/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "halfmq needs Python >= 3.11; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "python -m venv failed. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing locked dependencies into $(VENV) (about 700 MB with Spark; once) ..."
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable packages/faststream-halfmq
	@touch $(READY)

setup: $(READY)

site: $(READY)
	@$(BIN)/python -m sphinx -q -c docs/site . build/site
	@echo "build/site/index.html"

demo: $(READY)
	@$(BIN)/python -m demo --baskets $(BASKETS) --db $(DB) $(DEMO_ARGS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

# The second asks PyPI about each locked package; it is red too if PyPI, or a mirror in its place, says nothing about one.
audit: $(READY)
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src examples packages/faststream-halfmq/src
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock

# Parts run beside each other; see tests/run.py and docs/testing.md.
test-fast: $(READY)
	@$(BIN)/python -m tests.run fast

test: $(READY)
	@$(BIN)/python -m tests.run gate

test-all: $(READY)
	@$(BIN)/python -m tests.run all

bench: $(READY)
	@mkdir -p build/bench
	$(BIN)/halfmq bench tx --output build/bench/tx.json

# Generated mutants of core/transaction and of recovery; hours. Fewer: make mutants MUTANTS='halfmq.store.log_scan.*'
MUTANTS ?=
mutants: $(READY)
	@$(BIN)/python -m tests.mutation.generated $(MUTANTS)

# Newest versions that pyproject.toml allows, with hashes and without addresses. Needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	  --all-extras --group test pyproject.toml build-requirements.in -o requirements.lock

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants
