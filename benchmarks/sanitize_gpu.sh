#!/bin/bash
# Runs NVIDIA's compute-sanitizer over every kernel, on graphs of some hundred nodes.
#
#   bash benchmarks/sanitize_gpu.sh [--quick] [TOOL...]
#
# TOOL is memcheck, racecheck, initcheck or synccheck; without one, all four, side by side on GPU 0.
# What they run is tests/kernels, whose cases name the kernels that they launch; a test on the CPU
# fails if a kernel of csrc/ is in no case. Prints a table and, of what was found, the first lines;
# everything is in the logs. Exit status 1 if a tool found something, a test failed or time ran out.
#
# --quick: at most 200 s a tool instead of 900, and only our own kernels are watched, so torch's and
# CUB's run at full speed; initcheck always watches all, to know what they wrote.
#
# Environment: PYTHON; SANITIZER, the program, if it is neither on PATH nor in CUDA's folder; LIMIT,
# seconds for a tool; LOGS, a folder (a new one in /tmp by default); SELECT, of the cases, as for
# pytest -k.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
limit=900
watched=()
if [ "${1:-}" = --quick ]; then
  limit=200
  watched=(--kernel-regex kns=peergraph)
  shift
fi
LIMIT=${LIMIT:-$limit}
LOGS=${LOGS:-$(mktemp -d /tmp/peergraph-sanitize-XXXXXX)}
if [ $# -eq 0 ]; then set -- memcheck racecheck initcheck synccheck; fi
for tool in "$@"; do
  case $tool in
    memcheck|racecheck|initcheck|synccheck) ;;
    *) echo "sanitize_gpu.sh: unknown tool $tool" >&2; exit 2;;
  esac
done
sanitizer=${SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)}
if [ -z "$sanitizer" ]; then
  echo "sanitize_gpu.sh: compute-sanitizer is missing: it comes with the CUDA toolkit, and by pip as" \
    "nvidia-cuda-sanitizer-api; SANITIZER names it" >&2
  exit 2
fi
mkdir -p "$LOGS"

# torch would hand out pieces of large allocations, and an access beyond a piece would be no error.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONUNBUFFERED=1 PEERGRAPH_REQUIRE_GPUS=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} CUDA_MODULE_LOADING=LAZY

# check TOOL: runs it and leaves exit status and seconds in files.
check() {
  local tool=$1 options=("${watched[@]}") begin=$SECONDS
  if [ "$tool" = initcheck ]; then options=(); fi
  timeout -k 10 "$LIMIT" "$sanitizer" --tool "$tool" --print-limit 50 --error-exitcode 99 \
    --log-file "$LOGS/$tool.txt" "${options[@]}" \
    "$PYTHON" -m pytest -v -n 0 --timeout 0 -p no:cacheprovider tests/kernels/test_every_kernel.py \
    -k "test_results and cuda${SELECT:+ and ($SELECT)}" > "$LOGS/$tool.pytest.txt" 2>&1
  echo "$? $(( SECONDS - begin ))" > "$LOGS/$tool.status"
}

# The number of lines of a file that match.
count() { grep -cE "$1" "$2" 2>/dev/null || true; }

row() {
  local tool=$1 status seconds passed failed errors outcome
  read -r status seconds < "$LOGS/$tool.status"
  passed=$(count ' PASSED' "$LOGS/$tool.pytest.txt")
  failed=$(count ' (FAILED|ERROR)' "$LOGS/$tool.pytest.txt")
  errors=$(grep -oE 'SUMMARY: [0-9]+' "$LOGS/$tool.txt" 2>/dev/null | tail -1 | grep -oE '[0-9]+')
  case $status in
    0) outcome=passed;;
    124|137) outcome="**cut off after $LIMIT s**";;
    99) outcome="**found something**";;
    *) outcome="**failed** ($status)";;
  esac
  if [ "$status" = 0 ] && { [ "$passed" = 0 ] || [ -z "$errors" ]; }; then
    outcome="**checked nothing**"
  fi
  echo "| $tool | $outcome | ${errors:-?} | $passed | $failed | $seconds |"
}

for tool in "$@"; do check "$tool" & done
wait
echo "| tool | outcome | errors | tests passed | tests failed | seconds |"
echo "| --- | --- | --- | --- | --- | --- |"
code=0
for tool in "$@"; do
  line=$(row "$tool")
  echo "$line"
  case $line in *'**'*) code=1;; esac
done
for tool in "$@"; do
  case $(row "$tool") in *'**'*) ;; *) continue;; esac
  echo; echo "$tool:"
  head -n 40 "$LOGS/$tool.txt" 2>/dev/null
  grep -E '^(FAILED|ERROR|E  )' "$LOGS/$tool.pytest.txt" | head -n 20
done
echo; echo "logs: $LOGS"
exit $code
