# `make demo` and `make test` do all their own set-up in .venv; nothing else is needed but Python 3.11+ and make.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
MINUTES   ?= 30
SOAK_PORT ?= 18089
WORKLOADS ?= origin_to_disk peer_to_disk flatness serve small_files delta mirror load swarm sim_validation chunking
SPEECH    ?= frame mimi steps products long server

.PHONY: demo test slow soak bench bench-speech lint types check clean
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

slow: $(VENV)/.ready
	$(BIN)/python -m pytest -m slow

# Calls that join, leave, stall and send garbage, against a server of its own: half an hour, or MINUTES=5.
soak: $(VENV)/.ready
	test -d .work/soak || $(BIN)/tts make-checkpoint .work/soak --size small --seed 1
	$(BIN)/tts serve --model .work/soak --keyless --lanes 16 --port $(SOAK_PORT) & server=$$!; \
	trap "kill $$server" EXIT; \
	until $(BIN)/python -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:$(SOAK_PORT)/readyz")' 2>/dev/null; \
	do kill -0 $$server || exit 1; sleep 1; done; \
	$(BIN)/tts bench soak --url http://127.0.0.1:$(SOAK_PORT) --minutes $(MINUTES)

# Every workload of weight delivery beside its peers, some hours; then the tables. WORKLOADS="load swarm" takes fewer.
bench: $(VENV)/.ready .work/bench/.ready
	for one in $(WORKLOADS); do $(BIN)/python benchmarks/bench_$$one.py || exit 1; done
	$(BIN)/python benchmarks/report.py

.work/bench/.ready: benchmarks/peers.txt
	$(PYTHON) -m venv .work/bench
	.work/bench/bin/pip install -q -r $<
	touch $@

# The model and the server beside the public package.
bench-speech: $(VENV)/.ready
	$(BIN)/pip install -q --no-deps moshi==0.2.13
	$(BIN)/pip install -q einops sphn
	for one in $(SPEECH); do $(BIN)/python benchmarks/bench_$$one.py || exit 1; done

lint: $(VENV)/.ready
	$(BIN)/ruff check .

types: $(VENV)/.ready
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) .work
