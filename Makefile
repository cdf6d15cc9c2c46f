# `make demo` and `make test` do all the set-up. Everything that is installed goes into .venv.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UV_COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock"

.PHONY: help demo test test-containers image-engine image-orchestrator image-explore sbom scan \
	test-nights test-browser test-postgres lint types lock schema clean setup judges golden focus \
	bench-flow bench-scale bench-quality bench-tokens bench-observer bench-train

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1\t/' | expand -t 20

# The lock names every package: --no-deps keeps pip from resolving again, where a release newer than the lock can lead
# it to refuse the whole install.
setup: $(STAMP) ## the virtual environment, from the hash-checked lock

$(STAMP): requirements/main.txt pyproject.toml scripts/find-python
	@python=$$(scripts/find-python) && $$python -m venv --clear $(VENV)
	@echo "Installing into $(VENV) (about 2.6 GB, a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/main.txt
	@$(BIN)/python -m pip check >/dev/null || { $(BIN)/python -m pip check; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## retrain on this Python's standard library and say what it cost
	@$(BIN)/tokenmill run demo

JUDGES := build/judges

judges: $(JUDGES)/.installed ## PyTorch and transformers, which tests compare with, in an environment of their own

$(JUDGES)/.installed: requirements/judges.txt scripts/find-python
	@python=$$(scripts/find-python) && $$python -m venv $(JUDGES)
	@echo "Installing the tests' outside judges into $(JUDGES) ..."
	@$(JUDGES)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/judges.txt
	@touch $@

test: $(STAMP) $(JUDGES)/.installed lint types ## lint, types and all tests, in two processes
	@$(BIN)/python -m pytest -n 2 --dist loadfile

test-nights: $(STAMP) ## nights that meet, fail, die and lose their machine under a real server (minutes)
	@$(BIN)/python -m pytest -m long tests/integration/test_nights.py

test-browser: $(STAMP) ## the UI from the form to the cost report, in Debian's chromium (installs it if it may)
	@scripts/debian-package chromium /usr/bin/chromium
	@$(BIN)/python -m pytest -m long tests/integration/test_browser.py

test-postgres: $(STAMP) ## a server on PostgreSQL with authentication, and a work pool (installs Debian's if it may)
	@scripts/debian-package postgresql /usr/lib/postgresql
	@scripts/with-postgres $(BIN)/python -m pytest -m long tests/integration/test_postgres.py

lint: $(STAMP) ## ruff: style and imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

test-containers: $(STAMP) ## the tests that need a container engine: brings one up, builds the image (needs root and apt-get)
	@scripts/test-containers $(BIN)/python

image-engine: ## build the engine image (VARIANT=gpu for CUDA; TAG names it)
	@DOCKER=docker scripts/build-image engine $(or $(TAG),tokenmill/engine:latest)

image-orchestrator: ## build the orchestrator image
	@DOCKER=docker scripts/build-image orchestrator $(or $(TAG),tokenmill/orchestrator:latest)

image-explore: ## build the image with JupyterLab
	@DOCKER=docker scripts/build-image explore $(or $(TAG),tokenmill/explore:latest)

sbom: ## list what the engine's lock holds, as CycloneDX (needs cyclonedx-py)
	@command -v cyclonedx-py >/dev/null || { echo "make sbom needs cyclonedx-py: pip install cyclonedx-bom" >&2; exit 2; }
	@mkdir -p build && cyclonedx-py requirements requirements/engine.txt --output-file build/engine.cdx.json

scan: ## look for known vulnerabilities in the engine's lock (needs pip-audit)
	@command -v pip-audit >/dev/null || { echo "make scan needs pip-audit: pip install pip-audit" >&2; exit 2; }
	@pip-audit --require-hashes --disable-pip --requirement requirements/engine.txt

schema: $(STAMP) ## regenerate pipelines.schema.json from the models
	@$(BIN)/python -m tokenmill.pipelines > pipelines.schema.json

golden: $(STAMP) ## write tests/golden anew; look at the difference before you commit it
	@$(BIN)/python -m tests.golden.cost_report

FOCUS := build/focus

focus: $(FOCUS)/.installed ## judge the golden costs.csv by the official FOCUS validator, in an environment of its own
	@scripts/focus-validate $(FOCUS) tests/golden/cost_report/costs.csv

$(FOCUS)/.installed: requirements/focus.txt scripts/find-python
	@python=$$(scripts/find-python) && $$python -m venv $(FOCUS)
	@$(FOCUS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/focus.txt
	@touch $@

bench-quality: $(STAMP) ## seconds and memory of a validation of a million documents (minutes; needs 4 GB of disk)
	@$(BIN)/python benchmarks/quality.py

bench-flow: $(STAMP) ## what the flow adds to its bare stages, and mapped tasks to 2,000 groups (minutes)
	@$(BIN)/python -m benchmarks.flow > docs/benchmarks/flow.json.new && mv docs/benchmarks/flow.json.new docs/benchmarks/flow.json

bench-scale: $(STAMP) ## the tables of docs/design/scale.md
	@$(BIN)/python -m benchmarks.scale

bench-tokens: $(STAMP) ## the token cache beside its peers (needs apt, npm and about 20 minutes)
	@$(BIN)/python -m benchmarks.tokens.bench .bench/tokens

bench-train: $(STAMP) ## training beside Keras fit, PyTorch and the HF Trainer (needs apt, a C++ compiler and an hour)
	@$(BIN)/python -m benchmarks.train.bench .bench/train

bench-observer: $(STAMP) ## processor time of the process that watches a training (two minutes)
	@$(BIN)/python -m benchmarks.observer

lock: ## resolve requirements/*.txt anew (needs uv)
	@$(UV_COMPILE) --extra cpu --extra orchestrate --extra object-store --extra dev pyproject.toml -o requirements/main.txt
	@$(UV_COMPILE) -c requirements/main.txt --extra cpu --extra object-store pyproject.toml -o requirements/engine.txt
	@$(UV_COMPILE) -c requirements/main.txt --extra gpu --extra object-store pyproject.toml -o requirements/engine-gpu.txt
	@$(UV_COMPILE) -c requirements/main.txt --extra orchestrate --extra object-store pyproject.toml -o requirements/orchestrator.txt
	@$(UV_COMPILE) -c requirements/engine.txt --extra cpu --extra object-store --extra explore pyproject.toml -o requirements/explore.txt

clean: ## remove caches (not the workspace, not .venv)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
