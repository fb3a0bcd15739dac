"""Two machines on one: network namespaces with a cable between them, whose rate may be limited."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# The address of the first machine.
FIRST = "10.0.0.1"
# Two network namespaces and a cable between them.
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
"""
# Kinds of namespaces, of <linux/sched.h>.
_MOUNT, _UTS, _USER, _NET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
_BURST = 1 << 16


def why_not() -> str | None:
    """Why this machine cannot be two; None where it can."""
    done = run_on_two_machines(_nothing, 60)
    if done.returncode:
        return f"this machine allows no network namespaces: {done.stderr.strip()[-500:]}"
    return None


def _nothing(rank: int) -> None:
    pass


def run_on_two_machines(
    main: Callable[[int], None], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Calls ``main(rank)`` on both machines, and returns what both have printed.

    Both are forks of this process, which must have no other thread: what it has imported, they need
    not import.

    Args:
        main: the work of a rank, 0 or 1. The exit code is 1 where it raises.
        timeout_s: for both; then they are killed.

    Raises TimeoutError.
    """
    with tempfile.TemporaryDirectory() as folder:
        texts = [Path(folder, name) for name in ("out", "err")]
        process = multiprocessing.get_context("fork").Process(target=_both, args=(main, *texts))
        process.start()
        assert process.pid is not None
        try:
            process.join(timeout_s)
            if process.exitcode is None:
                raise TimeoutError(f"two machines took more than {timeout_s:g} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
        out, errors = (text.read_text() for text in texts)
        return subprocess.CompletedProcess([], process.exitcode, out, errors)


def _both(main: Callable[[int], None], out: Path, errors: Path) -> None:
    os.setsid()
    for path, descriptor in ((out, 1), (errors, 2)):
        # Several processes write to it.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
    _become_root()
    subprocess.run(["bash", "-c", _NETWORK], check=True)
    ranks = [_fork(main, rank, side) for rank, side in enumerate("ab")]
    codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    sys.exit(int(any(codes)))


def _become_root() -> None:
    """Becomes root in namespaces of its own, which takes no privileges."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _USER | _NET | _MOUNT | _UTS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    # Mounts of this process are not the system's.
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def _fork(main: Callable[[int], None], rank: int, side: str) -> int:
    """Starts the rank of a machine, and returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(f"/run/netns/{side}") as network:
            _call("setns", network.fileno(), _NET)
        _call("unshare", _UTS)
        socket.sethostname(f"host-{side}")
        os.environ["GLOO_SOCKET_IFNAME"] = f"v{side}"
        main(rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(name: str, *arguments: int) -> None:
    """Calls `unshare` or `setns` of the C library, which Python has since version 3.12."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


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
