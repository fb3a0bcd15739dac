"""torchrun --max-restarts on two machines: the training is that of a run without a failure."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_memory import shared_files

PROGRAM = Path(__file__).with_name("restarted_training.py")
ROOT = PROGRAM.parent.parent.parent


def _in_uts_namespace(host: str) -> list[str]:
    """A command that starts another one on a machine of this name; [] where that is not allowed."""
    command = ["unshare", "--user", "--map-root-user", "--uts"]
    run = ["sh", "-c", 'hostname "$0" && exec "$@"', host]
    try:
        subprocess.run([*command, *run, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return [*command, *run]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.timeout(440)
def test_a_killed_rank_comes_back_with_the_same_batches(tmp_path: Path) -> None:
    files = shared_files()
    endpoint = f"127.0.0.1:{_free_port()}"
    agents = []
    for number, (host, ranks) in enumerate((("host-a", 1), ("host-b", 2))):
        prefix = _in_uts_namespace(host)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=1"]
        torchrun += ["--nnodes=2", f"--nproc-per-node={ranks}"]
        torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=1"]
        torchrun += ["--local-addr=127.0.0.1", "--rdzv-conf", f"is_host={int(number == 0)}"]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            # Else ranks find the addresses of the first attempt in the launcher's store.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "PYTHONPATH": str(ROOT),
        }
        if not prefix:
            environment["PEERGRAPH_HOSTID"] = host
        log = (tmp_path / f"{host}.log").open("w")
        command = [*prefix, *torchrun, str(PROGRAM), str(tmp_path)]
        agents.append(
            subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=tmp_path
            )
        )
    try:
        codes = [agent.wait(timeout=400) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    logs = "".join(path.read_text()[-5000:] for path in tmp_path.glob("*.log"))
    assert codes == [0, 0], logs
    assert all((tmp_path / f"rank{rank}").exists() for rank in range(3)), logs
    assert shared_files() <= files
