# The two commands of the README, `make demo` and `make test`, and what they are made of.
PYTHON ?= python3
TORCH ?= 2.13.0
VENV := .venv
FORK := $(VENV)/bin/python -m fork
# Where the fork looks for it too. `make test NVCC=` leaves the CUDA kernels out.
NVCC := $(firstword $(wildcard $(CUDACXX) $(or $(CUDA_HOME),/usr/local/cuda)/bin/nvcc) $(shell command -v nvcc))

.PHONY: demo test cuda lint bench setup clean

demo: setup
	$(FORK) build
	$(VENV)/bin/python examples/attn.py

test: setup lint
	$(VENV)/bin/python -m pytest -q -n 2 fork/tests suites/tests checks
	$(FORK) check
	$(MAKE) cuda

# Builds, links, imports and inspects the CUDA kernels, which needs nvcc and no GPU; torch's CUDA build goes into build/.
cuda: setup
ifeq ($(NVCC),)
	@echo 'The CUDA kernels are not tested: nvcc was not found. Install the CUDA toolkit, or set CUDACXX.'
else
	$(FORK) run --torch $(TORCH) --cuda on -- python -m pytest -q checks/test_cuda_binary.py
endif

# What goes upstream is written as PyTorch's own linters want it: 88 columns, usort's order of imports, a main block.
# They leave torch/testing alone.
USORT := {known-first-party = ["torch"], order-by-type = false, lines-after-imports = 2}

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check fork suites checks bench examples conftest.py test/test_ops.py
	$(VENV)/bin/ruff format --check --line-length 88 --exclude torch/testing tools torch test/test_attn*.py test/test_decomp.py
	$(VENV)/bin/ruff check --isolated --select I --config 'lint.isort = $(USORT)' test/test_attn*.py
	! grep -L ' run_tests()$$' test/test_attn*.py | grep .
	$(VENV)/bin/mypy
	git ls-files -z '*.cpp' '*.h' '*.cu' '*.cuh' | xargs -0 $(VENV)/bin/clang-format --dry-run -Werror

# All cases take about an hour; QUICK=1 takes under two minutes. ARGS chooses a part: make bench ARGS='--dtype float32'
bench: setup
	$(FORK) build
	$(VENV)/bin/python -m bench.cpu $(if $(QUICK),--quick --out build/bench) $(ARGS)

setup: $(VENV)/ready

# Pinned: torch here, the rest in requirements.txt.
$(VENV)/ready: requirements.txt Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet torch==$(TORCH)
	$(VENV)/bin/python -m pip install --quiet -r requirements.txt
	touch $@

clean:
	rm -rf build $(VENV)
