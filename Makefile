# Every target installs what it needs first; as root, Debian packages too.
PYTHON ?= /usr/bin/python3
VENV   := .venv
PY     := $(VENV)/bin/python
TORCH  ?= torch==2.13.0
APT    := slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins libslurm-dev munge libmunge2 \
          mariadb-server lua5.1 iproute2 util-linux procps strace gcc libc6-dev make python3 python3-venv ca-certificates
SUITE  ?=
BACKEND ?= local
RESULT ?= build/demo.json

.PHONY: help setup check test test-gpu bench demo engine image clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .setup-apt .setup-venv spank/gandiva.so ## install Debian packages (root), .venv and the SPANK plugin

.setup-apt: Makefile
	@sh container/install-packages.sh $(APT)
	@touch $@

.setup-venv: pyproject.toml .setup-apt
	@echo "== making $(VENV)/ with $(PYTHON) (torch, test tools and this package)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip setuptools wheel
	@$(PY) -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

spank/gandiva.so: .setup-apt $(wildcard spank/*.c spank/*.h spank/*.lds) spank/Makefile
	@$(MAKE) --no-print-directory -C spank

check: setup ## ruff, mypy, C warnings, layer test
	$(VENV)/bin/ruff check gandiva_slurm tests
	$(VENV)/bin/mypy gandiva_slurm
	$(MAKE) --no-print-directory -C spank clean all
	$(PY) -m pytest -q tests/test_layers.py

# The floors of real processes, clusters and GPUs run last, two files at a time; the others share the cores, a thread each.
REAL := tests/contract tests/controller tests/node tests/gpu tests/cluster tests/docker

test: setup ## all test floors this machine can run
	@failed=0; \
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n auto --maxprocesses 8 --dist loadscope $(addprefix --ignore=,$(REAL)) || failed=1; \
	$(PY) -m pytest -q -n 2 --dist loadgroup $(REAL) || failed=1; \
	exit $$failed

test-gpu: .setup-gpu ## the tests that need a CUDA GPU, and their figures; without Slurm
	GANDIVA_REQUIRE=gpu,nvml,vmm $(PY) -m pytest -q -s tests/gpu

.setup-gpu: pyproject.toml
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e ".[dev,nvml,vmm]"
	@touch $@

bench: setup ## benchmarks; those of Slurm need root
	$(PY) -m pytest -q -s tests/bench

# Only the back end docker wants an engine and an image.
DEMO_NEEDS := $(if $(filter docker,$(BACKEND)),image)

demo: setup $(DEMO_NEEDS) ## the main job on an embedded mini Slurm (BACKEND=docker SUITE=forky: in containers)
	@mkdir -p build
	$(VENV)/bin/gandiva mini demo --backend $(BACKEND) $(if $(SUITE),--suite $(SUITE)) --json $(RESULT)

engine: ## a Docker engine: the one that runs, else (as root) one installed and started here
	@sh container/engine.sh start

image: engine ## the container image of SUITE (bookworm unless named, trixie, forky), unless it is up to date
	@TORCH="$(TORCH)" sh container/build.sh $(or $(SUITE),bookworm)

clean: ## remove what setup and the builds made
	rm -rf $(VENV) build .setup-apt .setup-venv .setup-gpu
	$(MAKE) --no-print-directory -C spank clean
