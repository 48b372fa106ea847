# The commands of the README, `make demo`, `make test` and `make test-all`, and what they are made of.
PYTHON ?= python3
TORCH ?= 2.13.0
VENV := .venv
FORK := $(VENV)/bin/python -m fork
# The tool looks for nvcc in the same places. `make test NVCC=` leaves the CUDA kernels out.
NVCC := $(firstword $(wildcard $(CUDACXX) $(or $(CUDA_HOME),/usr/local/cuda)/bin/nvcc) $(shell command -v nvcc))

.PHONY: demo test test-all unit long last check package emulated processors cuda lint lint-python lint-upstream lint-types lint-cpp format bench fuzz mutants sanitize setup clean

demo: setup
	$(FORK) build
	$(VENV)/bin/python examples/attn.py

# Makes targets in turn up to the first that fails, and says how long each took. With UNTIL, a second since 1970, what
# would begin later is left out and named: a slow machine with a limit of time must not lose what it has shown.
UNTIL :=
define in_turn
@status=0; for target in $(1); do begin=$$(date +%s); \
  if [ $$begin -gt $(or $(UNTIL),$$begin) ]; then times="$$times$$target: not run, for want of time\n"; continue; fi; \
  $(MAKE) --no-print-directory $$target; status=$$?; \
  times="$$times$$target: $$(($$(date +%s) - begin)) s\n"; [ $$status = 0 ] || break; done; \
  printf "\n$$times"; exit $$status
endef

# What a change has to pass. The aim is ten minutes on two cores after `make demo`.
test: setup
	$(call in_turn,lint unit last)

# All else; the aim is thirty minutes more. What `make test` has shown on the same files does not run again.
test-all: setup
	$(call in_turn,long check emulated cuda)

# The tests of the tool, of the suites and of what lies around the stack: `unit` has those that compile nothing, or one
# small thing, and `long` those that are marked so. A process that compiles needs about 2 GiB. Those that share a costly
# fixture form a group, which one process runs; single tests come last and fill the gaps. Threads that wait must not
# spin: several processes share the cores.
PYTEST := $(VENV)/bin/python -m pytest -q -n auto --maxprocesses 4 --dist loadgroup --durations 10
unit long: export OMP_WAIT_POLICY = passive
unit: setup
	$(PYTEST) -m 'not long and not sanitizers' checks bench fork/tests suites/tests

long: setup
	$(PYTEST) -m long checks fork/tests suites/tests

# Builds the last state of the stack and runs its tests and PyTorch's suites for the operator.
last: setup
	$(FORK) check --pr explicit

# The same for every state. A test runs again where something that it reads has changed since it passed.
check: setup
	$(FORK) check

# PR 4's numerics as another processor's libraries make them, by qemu: what only such a processor found once.
emulated: setup
	$(VENV)/bin/python -m checks.processors --quick

# All of it, and under other settings, in an hour at most. ARGS=OMP chooses rows.
processors: setup
	$(VENV)/bin/python -m checks.processors $(ARGS)

# The tool's own wheel and source distribution, and the wheel's test in an environment that has torch; `unit` has it too.
package: setup
	$(VENV)/bin/python -m build --outdir build/dist
	$(VENV)/bin/python -m pytest -q fork/tests/test_installed.py

# Builds, links, imports and inspects the CUDA kernels, and changes PyTorch's own: this needs nvcc, but no GPU. torch's CUDA build goes into build/.
cuda: setup
ifeq ($(NVCC),)
	@echo 'The CUDA kernels are not tested: nvcc was not found. Install the CUDA toolkit, or set CUDACXX.'
else
	$(FORK) run --torch $(TORCH) --cuda on -- python -m pytest -q checks/cuda/test_binary.py checks/cuda/test_rival.py fork/tests/test_replace_cuda.py
endif

OURS := fork suites checks bench examples conftest.py test/test_ops.py
# usort's order of imports.
USORT := {known-first-party = ["torch"], order-by-type = false, lines-after-imports = 2}

lint: lint-python lint-upstream lint-types lint-cpp

lint-python: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check $(OURS)

# PyTorch's own linters want 88 columns, usort's order, a main block, and rules of their own. They leave torch/testing
# alone. `fork check --lint ~/pytorch` runs the linters themselves.
TESTS := test/test_attn*.py test/distributed
UPSTREAM := tools torch stack $(TESTS) test/test_decomp.py
LAYOUT := --line-length 88 --exclude torch/testing tools torch $(TESTS) test/test_decomp.py
lint-upstream: setup
	$(VENV)/bin/ruff check --config .ruff-upstream.toml $(UPSTREAM)
	$(VENV)/bin/ruff format --check $(LAYOUT)
	$(VENV)/bin/ruff check --isolated --select I --config 'lint.isort = $(USORT)' $(TESTS)
	! grep -rL --include='*.py' ' run_tests()$$' $(TESTS) | grep .

lint-types: setup
	$(VENV)/bin/mypy

lint-cpp: setup
	git ls-files -z '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 $(VENV)/bin/clang-format --dry-run -Werror

# Writes what the linters of the stack's files would have otherwise.
format: setup
	git ls-files -z '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 $(VENV)/bin/clang-format -i
	$(VENV)/bin/ruff check --fix --config .ruff-upstream.toml $(UPSTREAM)
	$(VENV)/bin/ruff format $(LAYOUT)

# Random cases in random contexts, a third of the time on each CPU capability; `make fuzz SECONDS=600 SEED=7`.
SECONDS := 60
SEED := 0
fuzz: setup
	for capability in default avx2 avx512; do \
	  ATEN_CPU_CAPABILITY=$$capability OMP_WAIT_POLICY=passive $(FORK) run -- \
	    python -m checks.fuzz --seconds $$(( $(SECONDS) / 3 )) --seed $(SEED) || exit 1; \
	done

# Small mutations of the stack, each of which must fail a test that it names; `make mutants ARGS=attn.cpp` tries some.
mutants: setup
	$(VENV)/bin/python -m checks.mutants $(ARGS)

# The tests of memory and threads on forks with GCC's sanitizers, which must also find a planted overflow and race.
sanitize: setup
	$(VENV)/bin/python -m pytest -q -m sanitizers checks/mutants

# QUICK=1 takes under two minutes. ARGS='--minutes 9 --missing' goes on where the last run ended, and others choose a
# part of the cases: make bench ARGS='--dtype float32 --n 2048 4096'
bench: setup
	$(FORK) build
	$(VENV)/bin/python -m bench.attn.cpu $(if $(QUICK),--quick --out build/bench) $(ARGS)

setup: $(VENV)/ready

# Versions are pinned: torch's here, the others in requirements.txt. The tool is installed as it lies here, so that
# `python -m fork` works from any folder.
$(VENV)/ready: requirements.txt pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet torch==$(TORCH)
	$(VENV)/bin/python -m pip install --quiet -r requirements.txt
	$(VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf build $(VENV)
