# Two commands: `make chat` opens the REPL on the embedded model, `make test` runs the tests. Each makes .venv first if it
# is missing, and `make test` adds the developers' packages.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.tgr-local
DEV    := $(VENV)/.tgr-local-dev
PIP    := $(BIN)/pip install --disable-pip-version-check
NATIVE := pyproject.toml CMakeLists.txt $(wildcard csrc/*.cpp csrc/*.h csrc/*.py csrc/*/*) $(wildcard models/*.gguf models/*.json)

.PHONY: chat code test test-real arm lint format docs sanitize bench model wheel sdist sbom audit clean distclean

chat: $(STAMP)
	@$(BIN)/tgr-local chat

# repairs a copy of examples/code; MODEL=FILE: with another model than the embedded one; SANDBOX=none: with your rights,
# where no sandbox works
code: $(DEV)
	@MODEL="$(MODEL)" SANDBOX="$(SANDBOX)" examples/code.sh

# a worker that dies ends the run: pytest-xdist waits for ever where its last test is given to no other
test: $(DEV)
	$(BIN)/pytest -n auto --dist loadfile --max-worker-restart 0

# trained public models: MODELS is fetched if it is missing, every model that is there is tested. Threads that wait spin
# briefly only, which costs little on an idle machine and saves most of the time on a busy one
MODELS ?= smollm2 gemma3 coder-0.5b coder-1.5b
test-real: $(DEV)
	@TGR_TRAINED_MODELS=$$($(BIN)/python tests/trained_models.py $(MODELS)) && export TGR_TRAINED_MODELS && \
	    $(BIN)/pytest -m trained --durations=5 --timeout 900 -o faulthandler_timeout=920

# the products of quantized weights on an ARM processor that qemu imitates; needs g++-aarch64-linux-gnu and qemu-user
arm: $(DEV)
	tests/native/arm.sh

# what .pre-commit-config.yaml lists; `.venv/bin/pre-commit install` runs it before every commit
lint: $(DEV)
	$(BIN)/pre-commit run --all-files

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h tests/native/*

# the site of docs/, in build/site; runs the examples of its pages
docs: $(DEV)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml
	@echo "open build/site/index.html"

# the engine's tests under AddressSanitizer with UndefinedBehaviorSanitizer, then under ThreadSanitizer
sanitize:
	tests/sanitize.sh address,undefined
	tests/sanitize.sh thread

bench: $(DEV)
	$(BIN)/tgr-local bench

# trains, exports and measures the embedded model: some hours; stops and resumes at any time
model:
	$(MAKE) -C models

# dist/*.whl: for this system, every processor and this Python
wheel: $(BIN)/python
	@csrc/wheel.sh $(BIN)

# dist/*.tar.gz: builds without the repository
sdist: $(BIN)/python
	@$(PIP) --quiet build
	@$(BIN)/python -m build --sdist

# dist/tgr-local.cdx.json: everything that an installation with all extras has inside, as CycloneDX
sbom: $(BIN)/python
	@$(PIP) --quiet cyclonedx-bom pybind11
	@$(BIN)/python .ci/sbom.py

# asks the advisory database of PyPI about all of it; fails where that cannot be asked
audit: sbom
	@$(PIP) --quiet pip-audit
	@$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement dist/requirements.txt

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache

distclean: clean
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# editable: a change in Python shows at once, one in C++ at the next make. The tools that build stay in the venv, so that
# what depends on their paths is not compiled again.
$(STAMP): $(BIN)/python $(NATIVE)
	$(PIP) scikit-build-core pybind11 cmake ninja
	$(PIP) --no-build-isolation --editable .
	@touch $@

# llama-cpp-python, with which tests compare, gets llama.cpp on our ggml (TGR_PEER) and compiles none of its own; pip's
# cache must not keep it without
PEER := llama-cpp-python==$(shell sed -n 's/^set(LLAMA_CPP_PYTHON_VERSION \(.*\))$$/\1/p' CMakeLists.txt)
$(DEV): $(STAMP) $(wildcard tests/native/*)
	CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF" $(PIP) --no-build-isolation --no-cache-dir "$(PEER)"
	TGR_PEER=1 $(PIP) --no-build-isolation --editable .
	$(PIP) "tgr-local[dev]"
	@touch $@
