# Everything a developer types. `make` alone lists it; CONTRIBUTING.md says more.
#
# Each stamp in .venv stands for one thing that is done and need not be done again until its sources change:
#   .created   the environment itself
#   .js        the widget (aiflow_jupyter/static) and the JupyterLab extension (aiflow_jupyter/labextension) are built
#   .installed the package is installed for editing, with the tools to test and check it
#   .ready     Jupyter finds the extension and the kernelspec of this checkout
#   .model     the embedded model is on this machine; the stamp holds its path

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHARE := $(VENV)/share/jupyter
IPYKERNEL_OLD := 7.3.0
OLD_KERNEL := $(VENV)/ipykernel-$(IPYKERNEL_OLD)
PYTEST := $(BIN)/python -m pytest -rs
PYTEST_ARGS ?=
ARGS ?=

BUILT := aiflow_jupyter/static/widget.js aiflow_jupyter/labextension/package.json
JS_SOURCES := $(shell find js \( -name node_modules -o -path js/lab/lib \) -prune -o \
  -type f \( -name '*.ts' -o -name '*.js' -o -name '*.mjs' -o -name '*.css' -o -name '*.json' \) -print)
NOTEBOOKS := $(wildcard examples/*.ipynb)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo lab test test-fast test-js test-ipykernel73 test-notebooks bench lint clean model browser FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.model ## install everything, fetch the small model, and show it at work
	@$(BIN)/aiflow demo $(ARGS)

lab: $(VENV)/.ready model ## open JupyterLab on the examples
	@$(BIN)/aiflow lab $(ARGS)

test: lint test-js browser model test-ipykernel73 test-notebooks ## every check there is; installs Chromium where root on Debian
	@echo "test: units, model, kernels, browser, packaging"
	@$(PYTEST) tests $(PYTEST_ARGS)

test-fast: $(VENV)/.ready test-js ## the tests that need no browser, no model and no packaging
	@echo "test: units and kernels"
	@$(PYTEST) tests -m "not e2e and not model and not packaging" $(PYTEST_ARGS)

test-js: $(VENV)/.js ## the tests of the JavaScript
	@echo "test: JavaScript"
	@cd js && npm test --silent

test-ipykernel73: $(OLD_KERNEL)/.installed $(VENV)/.ready ## the kernel's tests on the oldest ipykernel that is watched
	@echo "test: kernels, on ipykernel $(IPYKERNEL_OLD)"
	@PYTHONPATH="$(CURDIR)/$(OLD_KERNEL)" AIFLOW_IPYKERNEL=$(IPYKERNEL_OLD) $(PYTEST) tests/kernel $(PYTEST_ARGS)

test-notebooks: $(VENV)/.ready model ## run the notebooks in examples/ from top to bottom
ifneq ($(NOTEBOOKS),)
	@echo "test: notebooks"
	@if [ -s $(VENV)/.model ]; then $(PYTEST) --nbmake --nbmake-timeout=300 examples $(PYTEST_ARGS); \
	  else echo "test: notebooks are left out, they need the model"; fi
endif

bench: $(VENV)/.ready model ## measure, as the README reports it
	@$(BIN)/aiflow bench $(ARGS)

lint: $(VENV)/.ready ## ruff, mypy, the rule of the rooms, biome and tsc
	@echo "lint: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run: $(BIN)/ruff format ." >&2; exit 1; }
	@echo "lint: mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "lint: imports"
	@$(BIN)/lint-imports > $(VENV)/imports.log 2>&1 || { cat $(VENV)/imports.log >&2; exit 1; }
	@echo "lint: JavaScript"
	@cd js && npm run --silent lint

clean: ## remove all that make made (the fetched model stays in its cache)
	@rm -rf $(VENV) js/node_modules js/lab/lib js/lab/tsconfig.tsbuildinfo aiflow_jupyter/static \
	  aiflow_jupyter/labextension dist build tests/e2e/report .pytest_cache .mypy_cache .ruff_cache \
	  .import_linter_cache .hypothesis
	@find aiflow_jupyter kernel_ext tests -name __pycache__ -prune -exec rm -rf {} +

# The steps behind them

# A new Python leaves the environment's link dangling: then it is made anew.
$(VENV)/.created: $(if $(shell test -x $(BIN)/python && echo works),,FORCE)
	@command -v "$(PYTHON)" > /dev/null || { \
	  echo "There is no $(PYTHON): install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$("$(PYTHON)" --version 2>&1), but 3.11 or newer is needed: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2> /dev/null || { \
	  echo "$(PYTHON) can't make environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "python: making the environment $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

js/node_modules/.package-lock.json: js/package-lock.json js/package.json js/lab/package.json
	@command -v node > /dev/null && command -v npm > /dev/null || { \
	  echo "There is no node with npm: install Node.js 20 or newer (https://nodejs.org)" >&2; exit 1; }
	@node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' || { \
	  echo "node is $$(node --version), but 20 or newer is needed" >&2; exit 1; }
	@echo "js: installing packages (under a minute)"
	@cd js && npm ci --silent --no-audit --no-fund || npm ci --no-audit --no-fund
	@touch $@

$(VENV)/.js: $(JS_SOURCES) js/node_modules/.package-lock.json \
  $(if $(filter-out $(wildcard $(BUILT)),$(BUILT)),FORCE) | $(VENV)/.created
	@echo "js: building the widget and the JupyterLab extension"
	@cd js && npm run build > ../$(VENV)/js.log 2>&1 || { cat ../$(VENV)/js.log >&2; exit 1; }
	@touch $@

# The JavaScript is there already: the build hook has nothing to do. What an earlier call linked is taken away first,
# lest pip write through it.
$(VENV)/.installed: pyproject.toml js/package.json $(VENV)/.created | $(VENV)/.js
	@echo "python: installing the package and its tools (a minute or two)"
	@rm -rf $(SHARE)/labextensions/aiflow-jupyter $(SHARE)/kernels/aiflow
	@export SKIP_JUPYTER_BUILDER=1; \
	  $(BIN)/pip install -qq --only-binary xllamacpp -e '.[embedded,retrieve,globus,fast,bench,test,lint]' || { \
	  echo "python: that failed; trying without the embedded model's engine (xllamacpp)"; \
	  $(BIN)/pip install -qq -e '.[retrieve,globus,fast,bench,test,lint]' && \
	  echo "python: xllamacpp has no build for this machine. All works but the embedded model: demo and its tests need it."; }
	@touch $@

# An editable install copies what belongs to Jupyter; links keep it at what was built last.
$(VENV)/.ready: $(VENV)/.installed $(VENV)/.js kernel_ext/kernelspec/kernel.json
	@rm -rf $(SHARE)/labextensions/aiflow-jupyter $(SHARE)/kernels/aiflow
	@mkdir -p $(SHARE)/labextensions/aiflow-jupyter $(SHARE)/kernels
	@ln -s "$(CURDIR)"/aiflow_jupyter/labextension/* "$(CURDIR)"/js/lab/install.json $(SHARE)/labextensions/aiflow-jupyter
	@ln -s "$(CURDIR)"/kernel_ext/kernelspec $(SHARE)/kernels/aiflow
	@touch $@

$(OLD_KERNEL)/.installed: | $(VENV)/.installed
	@echo "python: installing ipykernel $(IPYKERNEL_OLD) beside the other"
	@$(BIN)/pip install -qq --no-deps --upgrade --target $(OLD_KERNEL) ipykernel==$(IPYKERNEL_OLD)
	@touch $@

$(VENV)/.model: $(if $(shell test -f "$$(cat $(VENV)/.model 2>/dev/null)" && echo there),,FORCE) | $(VENV)/.ready
	@$(BIN)/python -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("xllamacpp") is None)' || { \
	  echo "model: its engine, xllamacpp, is not installed here" >&2; exit 1; }
	@echo "model: fetching it, unless it is here (98 MB)"
	@$(BIN)/aiflow models fetch
	@$(BIN)/python -c 'from aiflow_jupyter.providers.models import default_model; print(default_model().path)' > $@

# Where the model can't be had, what does not need it goes on; where everything is required, nothing does.
model:
	@$(MAKE) --silent --no-print-directory $(VENV)/.model || { \
	  [ "$$AIFLOW_REQUIRE_ALL" != 1 ] && echo "model: going on without it"; }

browser: ## find a Chromium for the browser's tests, or install it where root on Debian
	@for name in "$$CHROMIUM" chromium chromium-browser google-chrome google-chrome-stable chrome \
	    /Applications/Chromium.app/Contents/MacOS/Chromium \
	    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do \
	  if [ -n "$$name" ] && command -v "$$name" > /dev/null; then exit 0; fi; done; \
	if [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
	  echo "browser: installing Debian's chromium"; log=$$(mktemp); \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
	      chromium fonts-liberation fonts-dejavu-core; } > "$$log" 2>&1 || { cat "$$log" >&2; exit 1; }; \
	else \
	  echo "browser: no Chromium or Chrome found, so its tests can't run. Install one (Debian: apt install chromium;"; \
	  echo "  macOS: brew install --cask chromium), or name one: make test CHROMIUM=/path/to/it"; \
	fi

FORCE:
