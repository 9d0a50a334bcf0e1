# The two commands of the README, and those a contributor uses.
# Every target makes its own environment in $(VENV) first and works offline once that exists.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EQUISCALE := EQUISCALE_DATA=demo/data $(BIN)/python -m equiscale

.PHONY: help demo test lint format types contracts bench docs clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "the pinned versions need Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up $(VENV) (a few minutes, once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $(READY)

demo/data/emoji.npz: | $(READY)
	@$(EQUISCALE) data build emoji

demo: demo/data/emoji.npz ## set up, train three networks on a small budget and write a page (five minutes)
	@$(EQUISCALE) sweep --models standard,slice_pool,pixel_pool --data emoji --scenarios mid2rest \
	  --seeds 1 --epochs 8 --results demo/runs
	@$(EQUISCALE) report --results demo/runs --out demo/report.html
	@echo
	@echo "Look at demo/report.html in a browser: accuracy at every object size, beside the published figures."
	@echo "Eight epochs are few; for the paper's protocol leave out --epochs. Next, try:"
	@echo "  $(BIN)/equiscale train --model pixel_pool --scenario mid2rest --seed 1"
	@echo "  $(BIN)/equiscale models pixel_pool"
	@echo "  $(BIN)/equiscale data build folder --help"

test: $(READY) ## set up and run the tests
	$(BIN)/python -m pytest -n auto -q

lint: $(READY) ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## fix style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## check types
	$(BIN)/mypy

contracts: $(READY) ## check which room imports which
	$(BIN)/lint-imports

bench: $(READY) ## measure the layer's speed and memory (half an hour)
	$(BIN)/python benchmarks/layer.py
	$(BIN)/python benchmarks/layer_docs.py

docs: $(READY) ## build the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "Look at site/index.html"

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
