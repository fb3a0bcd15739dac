"""Two machines on one: network namespaces with a cable between them, whose rate may be limited."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# The address of the first machine.
FIRST = "10.0.0.1"
# Two network namespaces and a cable between them, without privileges; then a command on each.
_NETWORK = r"""
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
_ISOLATED = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts", "bash", "-c"]
_RUN = 'run b "$@" 1 & other=$!; run a "$@" 0; wait $other'
_BURST = 1 << 16


def why_not() -> str | None:
    """Why this machine cannot be two; None where it can."""
    script = _NETWORK + "run a true; run b true"
    try:
        subprocess.run([*_ISOLATED, script], check=True, capture_output=True, text=True, timeout=30)
    except FileNotFoundError as error:
        return f"network namespaces need util-linux and iproute2: {error}"
    except subprocess.CalledProcessError as error:
        return f"this machine allows no network namespaces: {error.stderr.strip()}"
    return None


def run_on_two_machines(
    program: Path, arguments: Sequence[str], python_path: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Runs ``python program *arguments RANK`` on both machines, and returns what both have printed.

    Args:
        python_path: folder for imports.
        timeout_s: for both; then they are killed.

    Raises subprocess.TimeoutExpired.
    """
    command = [*_ISOLATED, _NETWORK + _RUN, "", sys.executable, str(program), *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(python_path)},
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def limit_rate(bytes_per_second: float) -> None:
    """Limits what this machine sends, by a token bucket of the kernel (tc-tbf). Each of the two
    machines calls it.

    Raises subprocess.CalledProcessError where the kernel or iproute2 has none.
    """
    device = os.environ["GLOO_SOCKET_IFNAME"]
    rate = f"{max(1, round(8 * bytes_per_second))}bit"
    bucket = ["tbf", "rate", rate, "burst", str(_BURST), "latency", "50ms"]
    command = ["tc", "qdisc", "replace", "dev", device, "root", *bucket]
    subprocess.run(command, check=True, capture_output=True, text=True)
