#!/usr/bin/env bash
# Builds the fork with its CUDA kernels on a machine with a GPU, tests and measures it, writes one report: bench/gpu.sh
#
# PYTHON is the interpreter whose torch is the base (python3), OUT the folder of the report (build/gpu). Nothing is
# downloaded. It ends within nine minutes: a step that would pass the end is stopped, and the report says so.
set -uo pipefail
cd "$(dirname "$0")/.."
command -v nvidia-smi >/dev/null || { echo "gpu.sh: this machine has no NVIDIA GPU: nvidia-smi was not found" >&2; exit 1; }
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
report=$out/report.txt
end=$((SECONDS + 530))
failed=0
mkdir -p "$out"
: >"$report"

say() { echo "$@" | tee -a "$report"; }

# step NAME SECONDS COMMAND...: its output, shortened to the end, and how it went
step() {
  local name=$1 limit=$2 left=$((end - SECONDS)) begin=$SECONDS status=0
  shift 2
  if ((left < limit)); then limit=$((left > 1 ? left : 1)); fi
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
  say "== $name: $( ((status == 0)) && echo passed || { ((status == 124)) && echo "stopped after $limit s" || echo "FAILED ($status)"; }), $((SECONDS - begin)) s"
  tail -n "${lines:-40}" "$out/$name.log" >>"$report"
  ((status == 0)) || failed=1
  return $status
}

forked() { "$python" -m fork run --cuda on -- "$@"; }
export -f forked
export python PYTHONUNBUFFERED=1
# Kernels for this device alone: the build is then several times shorter.
TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1)}
export TORCH_CUDA_ARCH_LIST

# PyTorch's test base class imports expecttest, of which these suites use nothing; where it is missing an empty one serves.
if ! "$python" -c 'import expecttest' 2>/dev/null; then
  modules=$(mktemp -d)
  trap 'rm -r "$modules"' EXIT
  printf 'from unittest import TestCase\nACCEPT = False\n' >"$modules/expecttest.py"
  export PYTHONPATH=$modules${PYTHONPATH:+:$PYTHONPATH}
fi

say "attn on CUDA, $(date -u +%FT%TZ), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -1)"
say "$("$python" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)' 2>&1 | tail -1)"

if lines=20 step build 240 bash -c 'forked true'; then
  lines=120 step check 150 bash -c 'forked python -m bench.gpu.test_gpu'
  lines=120 step bench 130 bash -c 'forked python -m bench.gpu'
  # Without the caching allocator every tensor ends where memcheck believes that it ends.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  for tool in memcheck racecheck; do
    step "$tool" 45 bash -c "forked compute-sanitizer --tool $tool --kernel-regex kns=attn_fused --error-exitcode 9 \
      python -m bench.gpu.sanitize"
  done
  # initcheck has to see PyTorch's kernels too, as they write what ours read; what it says of theirs is not our affair.
  step initcheck 60 bash -c "forked compute-sanitizer --tool initcheck --print-limit 10000 python -m bench.gpu.sanitize &&
    ! grep -q attn_fused '$out/initcheck.log'"
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
  lines=25 step suites 200 bash -c 'forked python -m pytest -q -n 8 test/test_ops.py -k "attn and cuda"'
fi

say "== total $((SECONDS)) s, $( ((failed == 0)) && echo "everything passed" || echo "NOT everything passed")"
echo "report: $report"
exit $failed
