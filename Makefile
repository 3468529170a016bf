# Two commands: `make chat` opens the REPL on the embedded model, `make test` runs the tests. Each makes .venv first if it
# is missing. Most of the first build is llama-cpp-python, which pip then keeps; README.md
# says how long it takes.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.tgr-local
NATIVE := pyproject.toml CMakeLists.txt $(wildcard csrc/*.cpp csrc/*.h csrc/*.py csrc/bindings/* csrc/chat/* csrc/patches/*) $(wildcard models/*.gguf models/*.json)

.PHONY: chat code test lint format docs sanitize bench model wheel sdist clean distclean

chat: $(STAMP)
	@$(BIN)/tgr-local chat

# repairs a copy of examples/code; MODEL=FILE: with another model than the embedded one
code: $(STAMP)
	@MODEL="$(MODEL)" examples/code.sh

test: $(STAMP)
	$(BIN)/pytest -n auto --dist loadfile

# what .pre-commit-config.yaml lists; `.venv/bin/pre-commit install` runs it before every commit
lint: $(STAMP)
	$(BIN)/pre-commit run --all-files

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i csrc/*.cpp csrc/*.h csrc/bindings/* csrc/chat/*

# the site of docs/, in build/site; runs the examples of its pages
docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml
	@echo "open build/site/index.html"

# the engine's tests under AddressSanitizer, then under ThreadSanitizer; about fifteen minutes
sanitize:
	tests/sanitize.sh address
	tests/sanitize.sh thread

bench: $(STAMP)
	$(BIN)/tgr-local bench

# trains, exports and measures the embedded model: some hours; stops and resumes at any time
model:
	$(MAKE) -C models

# dist/*.whl: ggml inside, for this system, every processor and this Python; needs no llama-cpp-python
wheel: $(BIN)/python
	@csrc/wheel.sh $(BIN)

# dist/*.tar.gz: builds without the repository
sdist: $(BIN)/python
	@$(BIN)/pip install --quiet --disable-pip-version-check build
	@TGR_GGML=bundled $(BIN)/python -m build --sdist

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache

distclean: clean
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# editable: a change in Python shows at once, one in C++ at the next make
$(STAMP): $(BIN)/python $(NATIVE)
	$(BIN)/pip install --disable-pip-version-check --editable ".[dev]"
	@touch $@
