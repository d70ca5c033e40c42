# The two commands are `make demo` and `make test`; both make .venv first and need only Python 3.11+.
# Written for GNU make 3.81 (macOS): no .ONESHELL, no grouped targets.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
CREATED := $(VENV)/.created
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
PROJECT := $(VENV)/.project
LOG := $(VENV)/install.log
# The peers of the benchmark have an environment of their own.
PEERS := .venv-bench/.installed

UV_VERSION := 0.13.9
UV := .venv-lock/bin/uv
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	$(if $(UPGRADE),--upgrade)

INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input
# Runs $(1) with its output kept in $(LOG), and shows that output only when the command fails.
quietly = $(1) > $(LOG) 2>&1 || { cat $(LOG) >&2; echo "make: $(2) failed; what it printed is above" >&2; exit 1; }

# Extra words for pytest: make test TESTS="-k recovery"
TESTS ?=

.PHONY: help
help:
	@echo "make demo       run the travel demo on the embedded stack"
	@echo "make test       lint, types, import contracts and all tests"
	@echo "make lint       the checks of make test without the tests"
	@echo "make format     rewrite the sources in the project's format"
	@echo "make chaos      trips in a storm of kills, cuts and restarts (MINUTES=2)"
	@echo "make simulate   whole sagas in storms of faults, in virtual time (SEEDS=500 FIRST=0)"
	@echo "make exhaustive every crash, and every two, in every small saga"
	@echo "make mutants    break the guards of the code one by one, and see the tests notice each time"
	@echo "make bench      what a step costs, beside Celery chains, DBOS, Absurd and Temporal (QUICK=1)"
	@echo "make model      check the model of the protocol, and that no rule of it is idle (needs a JDK)"
	@echo "make compose-check that docker-compose.yml and the units of systemd name only what exists"
	@echo "make lock       resolve the requirements files anew (UPGRADE=1 for newer versions)"
	@echo "make clean      remove the environment and what the tools left"

.PHONY: demo
demo: $(RUNTIME) $(PROJECT)
	@$(BIN)/atalaia demo

.PHONY: test
test: lint
	@echo "== tests"
	@$(BIN)/pytest --quiet --numprocesses auto --dist loadgroup -m "not chaos" $(TESTS)
	@echo "== tests that kill processes"
	@$(BIN)/pytest --quiet -m chaos $(TESTS) || { [ $$? -eq 5 ] && [ -n '$(TESTS)' ]; }
	@[ -n '$(TESTS)' ] || { echo "== simulation" && $(BIN)/python -m tasks.proof.campaign --brief --seeds 1000 --fresh 2000; }
	@[ -n '$(TESTS)' ] || { echo "== small scope" && $(BIN)/python -m tasks.proof.exhaustive --share 2; }
	@[ -n '$(TESTS)' ] || { echo "== mutants" && $(BIN)/python -m tests.mutants.run; }

# Some of the mutants only: make mutants MUTANTS="saga_not_locked key_of_each_attempt"
MUTANTS ?=
# What each layer notices by itself: make mutants LAYERS=all, or LAYERS="simulation histories"
LAYERS ?=

.PHONY: mutants
mutants: $(DEV) $(PROJECT)
	@$(BIN)/python -m tests.mutants.run $(MUTANTS) $(if $(LAYERS),--layers $(LAYERS))

.PHONY: lint
lint: $(DEV) $(PROJECT)
	@echo "== ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "== import contracts"
	@$(BIN)/lint-imports --no-logo --cache-dir .import_linter_cache > $(LOG) 2>&1 || { cat $(LOG); exit 1; }

.PHONY: format
format: $(DEV)
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

# Minutes of a storm: make chaos MINUTES=60 BROKER=rabbitmq (which needs ATALAIA_TEST_RABBITMQ_URL)
MINUTES ?= 2
BROKER ?= valkey

.PHONY: chaos
chaos: $(DEV) $(PROJECT)
	@$(BIN)/python -m tests.chaos.storm --minutes $(MINUTES) --broker $(BROKER)

# Seeds of the simulation, from FIRST on: make simulate SEEDS=100000
SEEDS ?= 500
FIRST ?= 0

.PHONY: simulate
simulate: $(DEV) $(PROJECT)
	@$(BIN)/python -m tasks.proof.campaign --seeds $(SEEDS) --first $(FIRST)

# All of it takes some minutes; one scenario of every so many: make exhaustive SHARE=10
SHARE ?= 1

.PHONY: exhaustive
exhaustive: $(DEV) $(PROJECT)
	@$(BIN)/python -m tasks.proof.exhaustive --share $(SHARE)

# The plain chain and Atalaia only, in a minute: make bench QUICK=1
QUICK ?=
# Extra words: make bench BENCH="--only absurd atalaia_inline --rounds 3"
BENCH ?=

.PHONY: compose-check
compose-check: $(DEV) $(PROJECT)
	@$(BIN)/pytest --quiet tests/unit/test_compose.py tests/unit/test_deploy.py

.PHONY: bench
bench: $(DEV) $(PROJECT) $(if $(QUICK),,$(PEERS))
	@$(BIN)/python -m benchmarks.run $(if $(QUICK),--quick) $(BENCH)

.PHONY: model
model: $(DEV)
	@$(BIN)/python -m tests.model.run

.PHONY: venv
venv: $(DEV) $(PROJECT)

.PHONY: clean
clean:
	@rm -rf $(VENV) .venv-lock .venv-bench build dist *.egg-info htmlcov .coverage* \
		.hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .simulation

# A stamp is touched only after its command succeeded, so a failed install is done again.

$(CREATED):
	@rm -rf $(VENV)
	@for python in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || continue; \
		echo "Making $(VENV) with $$("$$python" --version)"; \
		"$$python" -m venv $(VENV) && touch $@ && exit 0; \
		rm -rf $(VENV); echo "make: $$python -m venv failed; on Debian and Ubuntu install python3-venv" >&2; exit 1; \
	done; \
	echo "make: no Python 3.11 or newer found; install one, or say make PYTHON=/path/to/python" >&2; exit 1

$(RUNTIME): requirements.txt | $(CREATED)
	@echo "Installing what is needed to run"
	@$(call quietly,$(INSTALL) --only-binary :all: --require-hashes -r requirements.txt,installing requirements.txt)
	@touch $@

# The development lock holds every line of the runtime lock, so it stands for both.
$(DEV): requirements-dev.txt | $(CREATED)
	@echo "Installing what is needed to run and to test"
	@$(call quietly,$(INSTALL) --only-binary :all: --require-hashes -r requirements-dev.txt,installing requirements-dev.txt)
	@touch $(RUNTIME) $@

# A peer that cannot be installed here is reported as not measured, so the benchmark goes on.
$(PEERS): requirements-bench.txt | $(CREATED)
	@echo "Installing the peers that are compared"
	@$(BIN)/python -m venv --clear .venv-bench
	@if .venv-bench/bin/python -m pip install --disable-pip-version-check --no-input \
		--only-binary :all: --require-hashes -r requirements-bench.txt > .venv-bench/install.log 2>&1; \
	then touch $@; \
	else cat .venv-bench/install.log >&2; rm -rf .venv-bench/bin; fi

# setuptools comes from the lock, so building the project reaches for nothing else.
$(PROJECT): pyproject.toml | $(RUNTIME)
	@$(call quietly,$(INSTALL) --no-index --no-deps --no-build-isolation \
		--config-settings editable_mode=compat --editable .,installing the project)
	@touch $@

.PHONY: lock
lock: $(UV)
	@$(COMPILE) --group build pyproject.toml --output-file requirements.txt
	@$(COMPILE) --group build --extra dev --constraint requirements.txt \
		pyproject.toml --output-file requirements-dev.txt
	@$(COMPILE) benchmarks/requirements.in --output-file requirements-bench.txt

$(UV): | $(CREATED)
	@$(BIN)/python -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
