# make reproduce            every study at laptop scale, from raw weights and text to figures, verdicts and results/laptop/report.html
# make reproduce SCALE=smoke    the same, tiny, in minutes
# make test                 the tests
# make figures              redraw figures, verdicts and report from the committed summaries, without training
# make bench                size and speed of every patch codec on this machine (benchmarks/README.md)
# make clean                remove the results of SCALE and the workflow's records of them (assets and .venv stay)
#
# PYTHON       interpreter that .venv is made with (3.11 or newer; default python3)
# TORCH_INDEX  address of a wheel index to take torch from; see README, "A CPU build of torch"
# CORES        cores to use (default all)

SCALE ?= laptop
PYTHON ?= python3
CORES ?= all
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
WORKFLOW := $(BIN)/snakemake --cores $(CORES) --config scale=$(SCALE)

.PHONY: reproduce test figures bench clean lint setup

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "thinwire needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,dev]'
	@touch $(READY)

reproduce: $(READY)
	@$(WORKFLOW) -- reproduce-all
	@$(if $(filter laptop,$(SCALE)),$(BIN)/thinwire-lab readme)
	@echo "report: results/$(SCALE)/report.html"

test: $(READY)
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint --config scale=smoke

figures: $(READY)
	@$(WORKFLOW) from_summaries=true --forceall -- figures report
	@echo "report: results/$(SCALE)/report.html"

bench: $(READY)
	@$(BIN)/python -m benchmarks.patch

clean:
	rm -rf results/$(SCALE)/runs results/$(SCALE)/versions results/$(SCALE)/logs results/$(SCALE)/summaries results/$(SCALE)/figures \
	  results/$(SCALE)/claims.csv results/$(SCALE)/bounds.csv results/$(SCALE)/reaches.csv results/$(SCALE)/report.html
