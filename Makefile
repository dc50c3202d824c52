# Every target works on a fresh clone with nothing installed but Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
# Which torch the targets use, installed first so that nothing else pulls another: the newest with which all tests
# were run. The package takes any from 2.6 on; TORCH=file.whl takes a wheel of yours, such as a build without CUDA.
TORCH ?= torch>=2.6,<2.14
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: quickstart quickstart-tables demo-federation audit test test-slow test-federation wheel neighbours soak mutants exactness lint bench docs clean

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

quickstart: .venv/installed
	$(BIN)/sottovoce quickstart

quickstart-tables: .venv/installed
	$(BIN)/sottovoce quickstart tables

# The services of deploy/compose.yaml as processes on loopback, with the shipped heart hospitals; needs nginx.
# ENGINE=nvflare: four of them on NVFlare, without nginx; DEMO=--beside lets Flower train them first, to compare.
demo-federation: .venv/installed
	$(BIN)/python $(if $(filter nvflare,$(ENGINE)),-m tests.federation.nvflare.demo,tools/demo_federation.py) $(DEMO)

# While mypy works all tests are read and, by the golden messages, all kernels compiled: each worker would do it
# again. There are four for two cores, since tests of processes wait. Files of few tests come in their order: some are long, and would be alone at the end.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/pytest -q -k test_golden & { $(BIN)/mypy && $(BIN)/lint-imports; } && wait $$!
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not slow and not network"

test-slow: .venv/installed
	$(BIN)/pytest -m "slow or network"

# Real processes on loopback. Needs nginx (apt-get install nginx-light), openssl and ssh-keygen; without them
# it fails.
test-federation: .venv/installed
	@PATH="$$PATH:/usr/sbin"; for program in nginx openssl ssh-keygen; do \
	    command -v $$program > /dev/null || { echo "make test-federation needs $$program:" \
	    "apt-get install nginx-light openssl openssh-client" >&2; exit 1; }; done
	$(BIN)/pytest tests/federation

# The wheel in fresh environments in build/wheel, as a user installs it: some minutes, and the network.
# WHEEL="newest" tries one of them.
wheel:
	$(PYTHON) tools/wheel.py --torch "$(TORCH)" $(WHEEL)

# Pairs of files that differ in one unit, and everything that would leave of both: minutes. Prints the tables of
# docs/privacy.md.
neighbours: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.neighbours

# An hour or two for all mutants; a sample with 'make mutants MUTANTS="--most 20 --seed 1"'. Continues where it
# was stopped, and tries survivors again.
mutants: .venv/installed
	mkdir -p build
	$(BIN)/python tools/mutants.py --out build/mutants.jsonl $(MUTANTS)

# The real presets: how far one record moves each release, and how well the worst pair is guessed (minutes).
audit: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --timeout=3600 -m slow tests/audit

soak: .venv/installed
	$(BIN)/python -m tests.federation.soak

exactness: .venv/installed
	$(BIN)/python -m benchmarks.exactness

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src studies tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed
	$(BIN)/python -m benchmarks

# The documentation as a site, in build/site: opens from the folder, and fetches nothing.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
	find src tools -name '*.nb[ic]' -delete
