# Every target installs what it needs first; as root, Debian packages too.
PYTHON ?= /usr/bin/python3
VENV   := .venv
PY     := $(VENV)/bin/python
TORCH  ?= torch==2.13.0
APT    := slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-jwt-plugin libslurm-dev \
          munge libmunge2 mariadb-server lua5.1 iproute2 util-linux procps strace gcc g++ libc6-dev make python3 python3-venv ca-certificates
TORCH_INDEX ?=
# A PyTorch that is named is taken as it is named.
PYTHON_STEPS = $(PYTHON) container/install-python.py --venv "$(VENV)" --torch-index "$(TORCH_INDEX)" \
               --torch "$(if $(filter file,$(origin TORCH)),,$(TORCH))"
HAS_PYTHON = command -v "$(PYTHON)" >/dev/null || { \
             echo "gandiva: venv: there is no Python at $(PYTHON); next: install it, or make setup PYTHON=..." >&2; exit 1; }
SUITE  ?=
BACKEND ?= local
RESULT ?= build/demo.json
TIMES  ?=
ACCEPTED ?= build/acceptance.json
VALIDATED ?= build/validate.json
PLOT   ?= build/validate.png
KEEP   ?=
STRICT ?=

.PHONY: help setup .setup-gpu check test test-all soak variants test-gpu attacks fuzz bench demo acceptance validate engine image spill clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Each of the four scripts does what is missing, and says so; a second run finds all done. 3: this user or this system
# cannot install Debian packages or build the plugin or the spill library; the rest works without, but for the targets
# that stop there.
setup: ## install Debian packages (root), .venv and the SPANK plugin; TORCH= and TORCH_INDEX= name a PyTorch
	@sh container/install-packages.sh $(APT) || [ "$$?$(STOP)" = 3 ]
	@$(HAS_PYTHON)
	@$(PYTHON_STEPS) --extras dev
	@sh container/build-plugin.sh || [ "$$?$(STOP)" = 3 ]
	@sh container/build-spill.sh || [ "$$?" = 3 ]

demo acceptance validate: STOP := here

check: setup ## ruff, mypy, C warnings, layer test
	$(VENV)/bin/ruff check gandiva_slurm tests
	$(VENV)/bin/mypy gandiva_slurm
	$(MAKE) --no-print-directory -C spank clean all
	$(PY) -m pytest -q tests/test_layers.py

# Tests of real processes and clusters wait for most of their time, four files side by side: a file's tests share a
# cluster, so a worker takes whole files. What needs processors alone runs beside them in what they leave, a worker a
# core; its output is shown when all have ended.
REAL_FLOORS := tests/contract tests/controller tests/node tests/cluster
REAL := -n 4 --dist loadfile
# What is compiled is kept, whatever the environment says: each of some thousand processes would compile it again,
# a worker of pytest for 7 s of a processor, a daemon for 0.1 s.
export PYTHONDONTWRITEBYTECODE :=
PYTEST = OMP_NUM_THREADS=1 GANDIVA_TIMES=$(TIMES) $(PY) -m pytest -q --no-loadscope-reorder
FAST := -n auto --maxprocesses 8 --dist loadscope
OTHER_FLOORS := $(addprefix --ignore=,$(REAL_FLOORS) tests/gpu tests/docker)
SHORT := -m "not slow and not soak"
# Files with long forms, whose marks are tests/slow.py's: each worker imports whatever it collects.
LONG_FILES = $(shell grep -rlE 'tests\.slow|on_cases|mark\.(slow|drawn)' tests --include='test_*.py' | sort)
REAL_LONG = $(filter $(addsuffix /%,$(REAL_FLOORS)),$(LONG_FILES))
FAST_LONG = $(filter-out $(addsuffix /%,$(REAL_FLOORS) tests/gpu tests/docker),$(LONG_FILES))
# Two command lines: the first beside the second, and at low priority until that has ended (an ordinary user cannot
# raise it again: on a machine with other load it takes longer then). Sets `failed` where one fails.
define BESIDE
mkdir -p build; \
	setsid nice -n 10 env $(1) >build/beside.log 2>&1 & beside=$$!; \
	trap 'kill -- -$$beside 2>/dev/null; exit 130' INT TERM HUP; \
	$(2) || failed=1; \
	renice -n 0 -g $$beside >/dev/null 2>&1; \
	wait $$beside || failed=1; \
	cat build/beside.log
endef

test: setup ## the test floors this machine can run, without the long forms
	@failed=0; $(PY) -m tests.device.build & \
	$(PYTEST) tests/gpu || failed=1; \
	$(call BESIDE,$(PYTEST) $(FAST) $(OTHER_FLOORS) $(SHORT),$(PYTEST) $(REAL) $(REAL_FLOORS) $(SHORT)); \
	exit $$failed

# Containers' clusters after those of this machine, three files side by side.
IN_CONTAINERS := -n 3 --dist loadfile
REST = $(PYTEST) $(REAL) $(REAL_LONG) -m "slow and not soak" || failed=1; $(PYTEST) $(IN_CONTAINERS) tests/docker -m "not soak"

test-all: setup ## the long rest: what make test leaves out, and mini clusters in containers
	@failed=0; \
	$(call BESIDE,GANDIVA_LONG=1 $(PYTEST) $(FAST) $(FAST_LONG) -m "(slow or drawn) and not soak",$(REST)); \
	exit $$failed

# A skip is a failure here, as in CI; GANDIVA_REQUIRE= takes what this machine has. Without an image its tests say so.
soak: export GANDIVA_REQUIRE ?= cluster,card,docker:bookworm,docker:trixie,docker:forky
soak: setup ## the longest forms, outside CI (root); docs/testing.md has dates and results
	-@for suite in bookworm trixie forky; do $(MAKE) --no-print-directory image SUITE=$$suite || break; done
	@failed=0; trap 'exit 130' INT TERM HUP; $(PY) -m tests.device.build; \
	GANDIVA_MOMENTS=20 $(PYTEST) -s tests/cluster/test_demo.py || failed=1; \
	GANDIVA_SPAN_WINDOW=330 $(PYTEST) -s --timeout 900 tests/cluster/test_spans.py -k "three_users or no_gpu or losses" || failed=1; \
	GANDIVA_CHAOS=1 $(PYTEST) --timeout 900 tests/cluster/test_chaos.py || failed=1; \
	for kind in hybrid v2; do \
		GANDIVA_MINI_CGROUPS=$$kind $(PYTEST) tests/cluster/test_frozen.py tests/cluster/test_devices.py || failed=1; \
	done; \
	GANDIVA_DAY=1 $(PYTEST) -s --timeout 3600 tests/cluster/test_day.py || failed=1; \
	$(PYTEST) $(REAL) $(REAL_FLOORS) -m soak || failed=1; \
	$(PYTEST) $(IN_CONTAINERS) tests/docker -m soak || failed=1; \
	GANDIVA_LONG=all GANDIVA_DRAW=anew $(PYTEST) $(FAST) $(OTHER_FLOORS) -m "soak or drawn or hypothesis" || failed=1; \
	exit $$failed

variants: setup ## known-wrong variants of the product against their tests (SAMPLE=20 SEED=1: that many, drawn by the seed)
	$(PY) -m tests.variants --jobs 2 $(if $(SAMPLE),--sample $(SAMPLE) --seed $(or $(SEED),0))

test-gpu: .setup-gpu ## the tests that need a CUDA GPU, and their figures; without Slurm
	GANDIVA_REQUIRE=gpu,nvml,vmm $(PY) -m pytest -q -s tests/gpu

.setup-gpu:
	@$(HAS_PYTHON)
	@$(PYTHON_STEPS) --extras dev,nvml,vmm --cuda

attacks: setup ## ways to work without paying, on a real gandivad and under Slurm (root; 6 min): what each worked and was charged
	GANDIVA_ATTACK_S=60 $(PY) -m pytest -q -s tests/node/test_attacks.py tests/cluster/test_attacks.py

fuzz: setup ## mutated messages, random pages, hostile flags and configurations: FUZZ_S=3600 seconds each (SEED=n PARTS=pages)
	$(PY) -m tests.fuzz.run --seconds $(or $(FUZZ_S),3600) --seed $(or $(SEED),0) $(PARTS)

bench: setup ## benchmarks; those of Slurm need root
	$(PY) -m pytest -q -s tests/bench

# Only the back end docker wants an engine and an image.
DEMO_NEEDS := $(if $(filter docker,$(BACKEND)),image)

DEMO_WHERE := --backend $(BACKEND) $(if $(SUITE),--suite $(SUITE))

demo: setup $(DEMO_NEEDS) ## the main job on an embedded mini Slurm (KEEP=1: stays up; BACKEND=docker SUITE=forky: in containers)
	@mkdir -p build
	@$(VENV)/bin/gandiva mini demo $(DEMO_WHERE) --json $(RESULT) $(if $(filter 1,$(KEEP)),--keep)

acceptance: setup $(DEMO_NEEDS) ## the same at length, with limits on times (quiet machine; STRICT=1: exit 2 where it was busy)
	@mkdir -p build
	@$(VENV)/bin/gandiva mini acceptance $(DEMO_WHERE) --json $(ACCEPTED) $(if $(filter 1,$(STRICT)),--strict)

validate: setup $(DEMO_NEEDS) ## a mini cluster against its simulation, and a plot of both (quiet machine; STRICT=1 as above)
	@mkdir -p build
	@$(VENV)/bin/gandiva mini validate $(DEMO_WHERE) --json $(VALIDATED) --plot $(PLOT) $(if $(filter 1,$(STRICT)),--strict)

engine: ## a Docker engine: the one that runs, else (as root) one installed and started here
	@sh container/engine.sh start

image: engine ## the container image of SUITE (bookworm unless named, trixie, forky), unless it is up to date
	@TORCH="$(TORCH)" sh container/build.sh $(or $(SUITE),bookworm)

spill: ## the library by which opportunistic jobs go on in host memory (node.spill_mib), into the package; setup makes it, too
	@sh container/build-spill.sh

clean: ## remove what setup and the builds made
	rm -rf $(VENV) build .setup-apt .setup-venv .setup-gpu gandiva_slurm/client/libspill.so
	$(MAKE) --no-print-directory -C spank clean
