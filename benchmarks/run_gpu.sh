#!/bin/bash
# Runs benchmarks on this machine's GPUs and records them in a folder of benchmarks/results/.
#
#   bash benchmarks/run_gpu.sh [STEP...]
#
# STEP is BENCH[:GRAPH][@RANKS]: gather, sampling, minibatch, training, embedding, aggregate, layers,
# dgl_layers, kinds, end_to_end, epoch, placement, spmm or fullgraph; graphs are listed by `python
# benchmarks/sampling.py --help`; as many ranks as GPUs by default, on aggregate, spmm and the layers
# one, on fullgraph 1, 2 and 4.
# Without steps: the first four, on products. A step that fails or takes too long is reported, and
# the next one runs.
#
# Environment: PYTHON; RESULTS, the folder; COMMIT, its hash, where this is no git checkout; LIMIT and
# STEP_LIMIT, seconds for everything and for a step; PEERS, of those
# that the benchmarks name; and more arguments for a benchmark, ARGS_gather and so on.
set -u
here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3}
LIMIT=${LIMIT:-3600}
STEP_LIMIT=${STEP_LIMIT:-400}
PEERS=${PEERS-wholegraph,nccl,torch,coo,csr,broadcast}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
# NVLink multicast is of no use here, and on machines shared with others it can do harm.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1

gpus=$($PYTHON -c 'import torch; print(torch.cuda.device_count())')
if [ "${gpus:-0}" -lt 1 ]; then echo "run_gpu.sh: torch finds no GPU" >&2; exit 2; fi
gpu=$($PYTHON -c 'import torch; print(torch.cuda.get_device_name(0))')
slug=$(echo "$gpu" | tr '[:upper:] ' '[:lower:]-' | sed 's/^nvidia-//; s/[^a-z0-9-]//g')
RESULTS=${RESULTS:-$here/results/$(date -u +%Y-%m-%d)-${slug}x$gpus}
mkdir -p "$RESULTS"
records=$RESULTS/records.jsonl
log=$RESULTS/log.txt
outcomes=$RESULTS/.outcomes
: > "$records"; : > "$log"; : > "$outcomes"
begin=$(date +%s)

elapsed() { echo $(( $(date +%s) - begin )); }

# The peers that a benchmark knows, of those asked for.
peers_of() {
  local known=wholegraph
  if [ "$1" = gather ]; then known="wholegraph nccl torch"; fi
  if [ "$1" = embedding ]; then known="torch"; fi
  if [ "$1" = kinds ]; then known="torch"; fi
  case $1 in end_to_end|epoch|dgl_layers) known="";; esac
  if [ "$1" = aggregate ]; then known="torch scatter cupy cusparse"; fi
  if [ "$1" = spmm ]; then known="torch cusparse"; fi
  if [ "$1" = fullgraph ]; then known="csr broadcast"; fi
  if [ "$1" = layers ]; then known="coo csr cusparse dgl"; fi
  for peer in $known; do
    case ",$PEERS," in *",$peer,"*) echo "$peer";; esac
  done | paste -sd,
}

# run_step STEP: one benchmark under a time limit; its outcome becomes a row of the README's table.
run_step() {
  local step=$1 bench graph="" ranks=$gpus limit outcome
  case $step in *@*) ranks=${step##*@}; step=${step%@*};; esac
  case $step in *:*) graph=${step#*:}; step=${step%%:*};; esac
  bench=$step
  case $bench in aggregate|spmm|layers|dgl_layers) case $1 in *@*) ;; *) ranks=1;; esac;; esac
  local more_name=ARGS_$bench
  local command="benchmarks/$bench.py --world $ranks${graph:+ --graph $graph}"
  local peers; peers=$(peers_of "$bench")
  command+="${peers:+ --peers $peers} ${!more_name:-}"
  limit=$(( LIMIT - $(elapsed) ))
  if [ "$limit" -gt "$STEP_LIMIT" ]; then limit=$STEP_LIMIT; fi
  if [ "$limit" -lt 30 ]; then
    echo "| \`$command\` | skipped, no time left | |" >> "$outcomes"
    return
  fi
  echo "[$(elapsed) s] $command (at most $limit s)" | tee -a "$log"
  local step_begin; step_begin=$(elapsed)
  # shellcheck disable=SC2086  # the arguments are words
  (cd "$here/.." && timeout -k 10 "$limit" $PYTHON $command --out "$records" \
    --deadline $(( limit - 15 )) 2>&1) >> "$log"
  case $? in
    0) outcome=passed;;
    124|137) outcome="**cut off after $limit s**";;
    *) outcome="**failed**";;
  esac
  echo "| \`$command\` | $outcome | $(( $(elapsed) - step_begin )) |" >> "$outcomes"
  echo "[$(elapsed) s] $outcome"
}

describe() {
  echo "# $gpus x $gpu, $(date -u '+%Y-%m-%d %H:%M') UTC"
  echo
  echo "Commit ${COMMIT:-$(git -C "$here" describe --always --dirty --abbrev=12 2>/dev/null)}." \
    "Driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)," \
    "$(nproc) cores. $($PYTHON - <<'PYTHON_END'
import importlib.metadata
import platform

names = ("torch", "torch-geometric", "dgl", "peergraph")
names += ("pylibwholegraph-cu13", "pylibwholegraph-cu12")
found = [f"Python {platform.python_version()}"]
for name in names:
    try:
        found.append(f"{name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        continue
print(", ".join(found) + ".")
PYTHON_END
)"
  echo
  echo "| step | outcome | seconds |"
  echo "| --- | --- | --- |"
  cat "$outcomes"
  echo
  echo '```'
  $PYTHON "$here/harness/records.py" "$records"
  echo '```'
}

if [ $# -eq 0 ]; then set -- gather sampling:products minibatch:products training:products; fi
for step in "$@"; do run_step "$step"; done
describe > "$RESULTS/README.md"
grep -aE "^ERROR" "$log" | sort | uniq -c | head -20
cat "$RESULTS/README.md"
if grep -qE 'failed|cut off|skipped' "$outcomes"; then code=1; else code=0; fi
rm -f "$outcomes"
exit $code
