#!/bin/bash
# Epochs of offloaded training on one GPU of 80 GB or more, for HongTu's tables.
#
#   bash benchmarks/run_offload.sh FOLDER [CASE...]
#
# CASE is small (Products and Reddit, resident and offloaded), inference (Products, beside PyG), it
# (IT-2004), friendster (a quarter of it), papers (a quarter), kinds (an eighth: SAGE, GIN and
# GGNN) or whole (all of papers, three layers, on a host of 128 GiB). Without cases: all, nine
# minutes. A case that fails or takes too long is reported, and the next one runs. FOLDER gets
# records.jsonl and log.txt; tables are printed. `python benchmarks/offloading/report.py RECORDS
# FOLDER` draws the pictures.
#
# Environment: PYTHON; LIMIT, seconds for everything; SCRATCH, a folder for 57 GB of features of
# `whole`; TINY=1, the same commands on graphs of a few nodes, which need no GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3}
LIMIT=${LIMIT:-530}
SCRATCH=${SCRATCH:-/tmp}
TINY=${TINY:-}
results=$1
shift
cases=${*:-small inference it friendster papers kinds whole}
mkdir -p "$results"
records=$results/records.jsonl
log=$results/log.txt
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-$([ -n "$TINY" ] && echo 1 || echo 8)}
# Where the memory of the machine grows on demand, it says too little at first.
available=$(awk '/MemAvailable/ {print $2 * 1024}' /proc/meminfo)
if [ -z "$TINY" ] && [ "$available" -lt $((110 << 30)) ]; then
  export PEERGRAPH_HOST_MEMORY=${PEERGRAPH_HOST_MEMORY:-$((112 << 30))}
fi
begin=$(date +%s)

# run CASE SECONDS ARGUMENTS...: one launch of offload.py, if there is time left.
run() {
  local name=$1 limit=$2 left=$((LIMIT - $(date +%s) + begin)) first code
  shift 2
  if [ "$left" -lt 20 ]; then echo "$name: no time left"; return; fi
  if [ "$limit" -gt "$left" ]; then limit=$left; fi
  first=$(date +%s)
  echo "== $name" >> "$log"
  # Of all processes this one goes first if the host has no memory left.
  (echo 1000 > /proc/self/oom_score_adj; exec timeout -k 5 "$limit" "$PYTHON" "$here/offload.py" \
    --worlds 1 --warmup 0 --iterations 3 --out "$records" "$@") >> "$log" 2>&1
  code=$?
  echo "$name: exit $code after $(($(date +%s) - first)) s of at most $limit s"
  if [ "$code" -ne 0 ]; then tail -n 4 "$log"; fi
}

# graphs ARGUMENTS...: the arguments, or those of tiny graphs.
graphs() {
  if [ -n "$TINY" ]; then echo --graphs tiny/40 --budgets 1M; else echo "$@"; fi
}

two=GCN:0-128-0,GAT:0-128-0
deep=GCN:0-256-256-256-0,GCN:0-256-256-256-256-256-256-256-0
for case in $cases; do
  case $case in
    small) run small 75 --models "GCN:0-256-0,$deep" --resident --offload \
      $(graphs --graphs products,reddit --budgets 6G,80G);;
    inference) run inference 60 --parts inference --models SAGE:0-256-256-0 --offload \
      $(graphs --graphs products --budgets 6G);;
    it) run it 110 --models $two --offload $(graphs --graphs it-2004 --budgets 80G --host 96G);;
    friendster) run friendster 90 --models $two --offload \
      $(graphs --graphs friendster/4 --budgets 20G --host 96G);;
    papers) run papers 100 --models $two --offload \
      $(graphs --graphs papers100m/4 --budgets 20G --host 96G);;
    kinds) run kinds 75 --models SAGE:0-128-0,GIN:0-128-0,GGNN:0-128-0 --offload \
      $(graphs --graphs papers100m/8 --budgets 10G --host 96G);;
    whole) run whole 180 --models GCN:128-128-128-172 --features "$SCRATCH" \
      $(graphs --graphs papers100m --budgets 137G --host 64G);;
    *) echo "unknown case $case" >&2; exit 2;;
  esac
done
figures=$(mktemp -d)
"$PYTHON" "$here/offloading/report.py" "$records" "$figures" > /dev/null
cat "$figures/offload.md"
rm -r "$figures"
echo "$(($(date +%s) - begin)) s"
