# Two commands do everything: `make train` and `make test`. Each sets up what is missing first, and is quick the second time.

# Installed where no PyTorch of 2.11 or newer is found. Options of pip may follow the requirement, such as an --index-url for
# another build: on Linux the registry's plain one comes with 3 GB of CUDA (see docs/install.md).
TORCH ?= torch==2.13.0
# The interpreter that .venv is made from; found when empty. If it has a fitting PyTorch of its own, that one is used.
PYTHON ?=
# Further options for the job: make train ARGS="--seed 3", make test ARGS="-k replay".
ARGS ?=

# What `make train` trains, and what it trains where DMControl cannot draw for want of an OpenGL library. The paper's batch
# is 512; on a CPU a quarter of it keeps the main job to about forty minutes.
MAIN_JOB := cartpole-swingup --env-steps 100000 $(if $(wildcard /dev/nvidia0),,--agent.batch-size 128)
MAIN_JOB_TAKES := $(if $(wildcard /dev/nvidia0),,On two CPU cores this takes about forty minutes (batch 128; the paper has 512).)
GAME_JOB := pong

export PYTHON
SETUP = scripts/setup --torch '$(TORCH)' $(if $(filter file,$(origin TORCH)),,--force-torch)
# Ctrl-C goes to the job, which ends with 130 when it has saved its work: no error for make to report.
INTERRUPTIBLE = trap : INT;
OR_INTERRUPTED = || [ $$? -eq 130 ]

.DEFAULT_GOAL := help
.PHONY: help train test test-gpu format docs clean setup setup-dev

help:
	@echo 'make train      train CURL on $(firstword $(MAIN_JOB)) from pixels (on a game of Atari where OpenGL is missing)'
	@echo 'make test       everything that CI runs: lint, format, types, documentation, tests'
	@echo 'make test-gpu   the tests that need a CUDA device'
	@echo 'make format     format the code and mend what the linter can mend'
	@echo 'make docs       build the documentation: docs/_build/html/index.html'
	@echo 'make clean      remove .venv and all that can be made again; runs/ stays'
	@echo
	@echo 'Each makes .venv and installs what it needs first. Variables:'
	@echo '  ARGS="..."     further options for train, test and test-gpu'
	@echo '  TORCH="..."    the PyTorch to install, now $(TORCH)'
	@echo '  PYTHON=...     the interpreter to use, 3.11 or 3.12'

train: setup
	@job='$(MAIN_JOB)'; note='$(MAIN_JOB_TAKES)'; [ -e .venv/gl-works ] || { job='$(GAME_JOB)'; \
		note="DMControl cannot draw here (curl-rl doctor tells why), so this trains $$job, a game of Atari."; }; \
	echo "$$note Ctrl-C saves, and the same command goes on."; \
	$(INTERRUPTIBLE) .venv/bin/curl-rl train $$job $(ARGS) $(OR_INTERRUPTED)

test: setup-dev
	@$(INTERRUPTIBLE) scripts/check $(ARGS) $(OR_INTERRUPTED)

test-gpu: setup-dev
	@$(INTERRUPTIBLE) .venv/bin/python -m pytest -m gpu $(ARGS) $(OR_INTERRUPTED)

format: setup-dev
	@.venv/bin/python -m ruff check --fix .; .venv/bin/python -m ruff format .

docs: setup-dev
	@.venv/bin/python -m sphinx -W --keep-going -q docs docs/_build/html && echo 'docs/_build/html/index.html'

clean:
	rm -rf .venv docs/_build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks scripts docs -name __pycache__ -prune -exec rm -rf {} +

setup:
	@$(SETUP)

setup-dev:
	@$(SETUP) --dev
