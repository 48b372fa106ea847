#!/usr/bin/env bash
# bench/attn/gpu.sh [build|check|sanitize|suites|bench] builds, tests or measures the CUDA kernels on a machine with a GPU.
#
# Each step ends within nine minutes and prints its summary last. Without a step, all run in nine minutes together:
# measuring has the device to itself, then all tests run at once, and the summary says what was left out for time.
# PYTHON is the interpreter whose torch is the base (python3), and OUT is the folder of the logs and the report
# (build/gpu). Nothing is downloaded.
set -uo pipefail
cd "$(dirname "$0")/../.."
steps=(build check bench sanitize suites)
refuse() { echo "gpu.sh: $*" >&2; exit 1; }
(($# <= 1)) || refuse "give one step of: ${steps[*]}"
(($# == 0)) || [[ " ${steps[*]} " == *" $1 "* ]] || refuse "there is no step $1: give one of ${steps[*]}, or none for all"

# Most tests take little and one 10 GiB, and the largest sizes of the benchmark 12.
command -v nvidia-smi >/dev/null || refuse "this machine has no NVIDIA GPU: nvidia-smi was not found"
gpu=$(nvidia-smi --query-gpu=name,compute_cap,memory.total,memory.used,utilization.gpu --format=csv,noheader,nounits 2>&1 | head -1)
IFS=, read -r name capability total used busy <<<"$gpu"
[[ $capability =~ ^\ *[0-9]+\.[0-9]+$ ]] || refuse "no NVIDIA GPU answers: nvidia-smi says \"${gpu:-nothing}\""
capability=${capability// /}
((${capability%.*} >= 8)) || refuse "the $name has compute capability $capability, and the kernels need 8.0 or later"
((total - used >= 16000)) || refuse "the $name has $((total - used)) MiB of free memory, and 16000 are needed: end what uses it"
((busy < 50)) || refuse "the $name is busy ($((busy)) % of the last second): wait until nothing else uses it"

only=${1:-}
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
end=$((SECONDS + 530))
mkdir -p "$out"
report=$out/report-${1:-all}.txt
: >"$report"
results=$out/results-${1:-all}.txt
: >"$results"

say() { echo "$@" | tee -a "$report"; }

# run NAME COMMAND... runs a command in the time that is left, which must be more than a few seconds
run() {
  local name=$1 left=$((end - SECONDS)) begin=$SECONDS status=0 verdict
  shift
  ((left >= 20)) || { echo "$name: left out for time" >>"$results"; return 1; }
  timeout -k 5 "$left" "$@" >"$out/$name.log" 2>&1 || status=$?
  case $status in
    0) verdict=passed ;;
    124) verdict="left out for time after $left s" ;;
    *) verdict="FAILED ($status)" ;;
  esac
  tail -n 60 "$out/$name.log" | tee -a "$report"
  echo "$name: $verdict, $((SECONDS - begin)) s, log $out/$name.log" >>"$results"
  return $status
}

forked() { "$python" -m fork run --cuda on -- "$@"; }
export -f forked
export python out PYTHONUNBUFFERED=1
# Compiling the kernels only for this device makes the build several times faster.
export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-$capability}

# PyTorch's test base class imports expecttest, but these suites use nothing of it: an empty module replaces it.
if ! "$python" -c 'import expecttest' 2>/dev/null; then
  modules=$(mktemp -d)
  trap 'rm -r "$modules"' EXIT
  printf 'from unittest import TestCase\nACCEPT = False\n' >"$modules/expecttest.py"
  export PYTHONPATH=$modules${PYTHONPATH:+:$PYTHONPATH}
fi

build() { run build bash -c 'forked true'; }
check() {
  run kernels bash -c 'forked python -m pytest -q -rf --tb=short test/test_attn_kernels.py -k cuda'
  run contexts bash -c 'forked python -m pytest -q -rf --tb=short test/test_attn_explicit.py -k cuda'
}

# With kernels wherever they can run, which shows where the rule may choose them. Half of the time, beside all tests.
bench() {
  local minutes=$(((end - SECONDS) / 60 - (${#only} ? 0 : 4)))
  run bench bash -c "forked python -m bench.attn.gpu --minutes $minutes --out '$out/results'"
}

# Without the caching allocator, memcheck knows where each tensor ends. racecheck takes half as many sizes. initcheck
# also has to watch PyTorch's kernels, which write what ours read, so only findings in our kernels count.
sanitize() {
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  local common="--kernel-regex kns=attn_fused --error-exitcode 9"
  run racecheck bash -c "forked compute-sanitizer --tool racecheck $common python -m bench.attn.gpu.sanitize --half" &
  run memcheck bash -c "forked compute-sanitizer --tool memcheck $common python -m bench.attn.gpu.sanitize"
  run initcheck bash -c 'forked compute-sanitizer --tool initcheck --print-limit 10000 python -m bench.attn.gpu.sanitize &&
    ! grep -q attn_fused "$out/initcheck.log"'
  wait
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

# One test takes longer than a third of all: it runs beside the others.
suites() { OMP_NUM_THREADS=2 run suites bash -c 'forked python -m pytest -q -n 4 test/test_ops.py -k "attn and cuda"'; }

say "attn on CUDA, $(date -u +%FT%TZ), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $gpu"
say "$("$python" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)' 2>&1 | tail -1)"
if (($#)); then
  "$1"
elif build; then
  bench
  for step in check sanitize suites; do "$step" & done
  wait
else
  echo "check, bench, sanitize and suites: left out, because there is no build" >>"$results"
fi

say "== summary, $SECONDS s"
say "$(cat "$results")"
! grep -q 'FAILED\|left out' "$results"
