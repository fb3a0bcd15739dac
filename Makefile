# `make demo` and `make test` are all that a fresh clone needs; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip reads the pins from here, in build isolation too; the second name is for pip 25.3 and later.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BUILT := $(VENV)/.built
LINTERS := $(VENV)/.linters
SOURCES := $(shell find csrc -type f -not -name '*.pyc') pyproject.toml constraints.txt
CXX_FILES := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: help build rebuild demo test lint format bench clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

build: $(BUILT)  ## .venv with everything built and installed (the other targets do it when needed)

demo: build  ## train GraphSAGE on two ranks from one shared store; options: ARGS="--help"
	$(BIN)/peergraph demo $(ARGS)

test: build  ## all tests; a part of them: ARGS="tests/memory -k gather"
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: build $(LINTERS)  ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(LINTERS)  ## rewrite Python and C++ files in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

bench: build  ## how to run the benchmarks; one of them: NAME=gather ARGS="--help"
	$(if $(NAME),$(BIN)/python benchmarks/$(NAME).py $(ARGS),@cat benchmarks/README.md)

rebuild: $(if $(wildcard $(BUILT)),,$(BUILT))  ## after an edit in csrc: compile only what changed
	$(BIN)/pip install -q scikit-build-core pybind11 cmake ninja
	$(BIN)/pip install -q --no-build-isolation --no-deps -e . -C build-dir=build/rebuild
	@touch $(BUILT)

clean:  ## remove .venv and all that was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

$(BIN)/pip:
	@$(PYTHON) csrc/cmake/preflight.py
	$(PYTHON) -m venv $(VENV)

$(BUILT): $(BIN)/pip $(SOURCES)
	$(BIN)/pip install -e '.[pyg,dgl,test]'
	@touch $@

$(LINTERS): $(BIN)/pip pyproject.toml constraints.txt
	$(BIN)/pip install -q ruff mypy clang-format
	@touch $@
