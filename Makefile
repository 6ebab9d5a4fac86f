# make venv | run | test | check | proto | soak: the same commands that CI and the README use.
VENV := .venv
PY := $(VENV)/bin/python
# The embedded Triton needs Python 3.11 or 3.12: the first of these that starts is taken.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && break; done)
CONSTRAINTS ?= constraints-cpu.txt
# Most tests wait for processes, so two at a time take little more than half as long.
TEST_PROCESSES ?= 2
EXTRAS ?= embedded,loadtest,kubernetes,redis,parquet,dev

.DEFAULT_GOAL := help
.PHONY: help venv run test check proto soak

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 with venv is needed; set PYTHON=/path/to/python"; exit 1; }
	@echo "installing into $(VENV) (about 1.6 GB, a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install -qq --disable-pip-version-check --upgrade 'pip>=24'
	@$(VENV)/bin/pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $@

venv: $(VENV)/.installed  ## make .venv with everything installed; starts nothing

run: venv  ## fetch the two small models once, then serve them
	$(VENV)/bin/tidegate models fetch
	$(VENV)/bin/tidegate up

test: venv  ## unit, integration and end-to-end tests on the real Triton
	$(VENV)/bin/tidegate models fetch
	$(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile -m 'not soak and not gpu' tests

check: venv  ## formatting, lint, types, import contracts
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

soak: venv  ## the long runs
	$(VENV)/bin/tidegate models fetch
	$(PY) -m pytest -m soak tests

proto: venv  ## regenerate contracts/*_pb2*.py from the .proto files
	$(PY) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. contracts/*.proto
