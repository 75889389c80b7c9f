# make run, make test, make lint, make bench. PYTHON chooses the interpreter of the first install.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DELETE_ON_ERROR:
.PHONY: run test lint bench install

run: $(INSTALLED)
	$(BIN)/python -m app run

test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

install: $(INSTALLED)

# Dependencies only: a wheel of ours would drop a top-level `datasets` into site-packages.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -c 'import tomllib; t = tomllib.load(open("pyproject.toml", "rb")); print("\n".join(t["project"]["dependencies"] + t["dependency-groups"]["dev"]))' > .venv/requirements.txt
	cmp -s .venv/requirements.txt $@ || $(BIN)/python -m pip install --quiet -r .venv/requirements.txt
	cp .venv/requirements.txt $@
