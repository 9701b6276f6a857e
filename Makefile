# `make demo` and `make test` do all their own set-up in .venv; nothing else is needed but Python 3.11+ and make.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint types check clean
.DEFAULT_GOAL := test

# torch is installed first and by exact version: asked for by a range, pip takes a CUDA build of several GB.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q $(TORCH)
	$(BIN)/pip install -q -e '.[tts,dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/bdn demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest -m 'not slow'

lint: $(VENV)/.ready
	$(BIN)/ruff check .

types: $(VENV)/.ready
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) .work
