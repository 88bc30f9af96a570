# Every target sets itself up: uv comes into .tools/ when the machine has none,
# the locked environment into .venv/.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3,\
	$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(p))))
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
UV_VERSION := 0.13.7
VENV := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo test check bench docs lock clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(READY) ## Create .venv/ with gradeline and everything that tests it

demo: $(READY) ## Grade a small built-in dataset with every family of grader
	@$(VENV)/gradeline demo

test: $(READY) ## Run all tests
	$(VENV)/pytest -n auto

check: $(READY) ## Lint, types, layers
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports

bench: $(READY) ## Print what a grade and a start cost, beside the floor and other tools
	$(UV) sync --locked --quiet --group bench
	$(VENV)/python bench/graders.py
	$(VENV)/python bench/pool.py
	$(VENV)/python bench/store.py
	$(VENV)/python bench/startup.py

docs: $(READY) ## Write what docs/ takes from the program
	$(VENV)/python docs/generate.py

lock: $(UV) ## Resolve the dependencies anew
	$(UV) lock

clean: ## Remove what the targets made
	rm -rf .venv .tools .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist

$(READY): pyproject.toml uv.lock | $(UV)
	$(UV) sync --locked --quiet
	@touch $@

.tools/bin/uv:
	@test -n "$(PYTHON)" || { echo "gradeline needs Python 3.11 or newer on the PATH (or: make PYTHON=/path/to/python3)" >&2; exit 1; }
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
