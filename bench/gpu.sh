#!/usr/bin/env bash
# bench/gpu.sh builds the fork with its CUDA kernels on a machine with a GPU, tests and measures it, and writes a report.
#
# PYTHON is the interpreter whose torch is the base (python3), and OUT is the folder of the report (build/gpu). Nothing
# is downloaded. The script ends within nine minutes: it stops a step that would take longer, and the report says so.
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

# step NAME SECONDS COMMAND... runs a command; the report gets its result and the end of its output
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
# Compiling the kernels only for this device makes the build several times faster.
TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1)}
export TORCH_CUDA_ARCH_LIST

# PyTorch's test base class imports expecttest, but these suites use nothing of it: an empty module replaces it.
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
  lines=120 step check 150 bash -c 'forked python -m pytest -q -rf --tb=short bench/gpu'
  lines=120 step bench 130 bash -c 'forked python -m bench.gpu'
  # Without the caching allocator, memcheck knows where each tensor ends.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  for tool in memcheck racecheck; do
    step "$tool" 45 bash -c "forked compute-sanitizer --tool $tool --kernel-regex kns=attn_fused --error-exitcode 9 \
      python -m bench.gpu.sanitize"
  done
  # initcheck also has to watch PyTorch's kernels, which write what ours read. Only findings in our kernels count.
  step initcheck 60 bash -c "forked compute-sanitizer --tool initcheck --print-limit 10000 python -m bench.gpu.sanitize &&
    ! grep -q attn_fused '$out/initcheck.log'"
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
  lines=25 step suites 200 bash -c 'forked python -m pytest -q -n 8 test/test_ops.py -k "attn and cuda"'
fi

say "== total $((SECONDS)) s, $( ((failed == 0)) && echo "everything passed" || echo "NOT everything passed")"
echo "report: $report"
exit $failed
