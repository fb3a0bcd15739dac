"""Two machines with network addresses of their own: what the store sends is counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("separate_networks.py")
ROOT = PROGRAM.parent.parent.parent

# Two network namespaces and a cable between them, without privileges; then a command on each.
NETWORK = r"""
set -e
mount -t tmpfs none /run
ip netns add a
ip netns add b
ip link add va netns a type veth peer name vb netns b
ip -n a addr add 10.0.0.1/24 dev va
ip -n b addr add 10.0.0.2/24 dev vb
for side in a b; do
  ip -n $side link set lo up
  ip -n $side link set v$side up
done
run() {
  GLOO_SOCKET_IFNAME=v$1 nsenter --net=/run/netns/$1 unshare --uts sh -c \
    'hostname "host-$0" && exec "$@"' "$@"
}
"""
ISOLATED = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts", "bash", "-c"]


def _need_namespaces() -> None:
    script = NETWORK + "run a true; run b true"
    try:
        subprocess.run([*ISOLATED, script], check=True, capture_output=True, text=True, timeout=30)
    except FileNotFoundError as error:
        pytest.skip(f"network namespaces need util-linux and iproute2: {error}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")


@pytest.mark.timeout(150)
def test_a_graph_is_sent_once_and_batches_send_nothing() -> None:
    _need_namespaces()
    script = NETWORK + 'run b "$0" "$1" 1 & other=$!; run a "$0" "$1" 0; wait $other'
    done = subprocess.run(
        [*ISOLATED, script, sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0: " in done.stdout
    assert "rank 1: " in done.stdout
