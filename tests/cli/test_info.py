"""`peergraph info` on this machine, and its parts on machines that are not at hand."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.scripts import run_python

import peergraph
from peergraph import _C
from peergraph.cli import _gpus, info
from peergraph.cli.__main__ import main
from peergraph.control_groups import usable_cpus
from peergraph.memory.region.free_memory import cgroup_memory


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"peergraph         {peergraph.__version__}" in text
    for title in ("Versions", "Compiled", "GPUs", "Limits"):
        assert title in text.splitlines()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["torch"] == importlib.metadata.version("torch")
    assert facts["compiled"]["cuda"] == _C.has_cuda
    assert (facts["compiled"]["nvcc"] is not None) == _C.has_cuda
    assert facts["compiled"]["max_shards"] == _C.max_shards
    assert facts["limits"]["memory_available"] > 0
    assert len(facts["gpus"]) == len(facts["links"])


def test_runs_as_a_module_and_reports_usage() -> None:
    command = [sys.executable, "-m", "peergraph.cli"]
    process = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == peergraph.__version__
    done = run_python("-m", "peergraph.cli")
    assert done.returncode == 2
    assert "COMMAND" in done.stderr


class Nvml:
    """NVML of three GPUs: the first two have NVLink, the third is behind another CPU."""

    NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE, NVML_TOPOLOGY_HOSTBRIDGE = 10, 20, 30
    NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 40, 50
    NVML_P2P_CAPS_INDEX_NVLINK = 2

    class NVMLError(Exception):
        """What the library raises."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.82.07"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid == "GPU-unknown":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetP2PStatus(self, first: str, second: str, index: int) -> int:
        return 0 if {first, second} == {"GPU-a", "GPU-b"} else 1

    def nvmlDeviceGetTopologyCommonAncestor(self, first: str, second: str) -> int:
        return self.NVML_TOPOLOGY_SYSTEM


def links_of(*uuids: str) -> list[list[str]]:
    return _gpus.link_matrix([_gpus.Gpu("H", "9.0", 1, 1, uuid) for uuid in uuids])


def test_links_between_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda i, j: 2 not in (i, j))
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    expected = [["self", "NVLink", "none"], ["NVLink", "self", "none"], ["none", "none", "self"]]
    assert links_of("b", "a", "c") == expected
    assert links_of("c", "a")[0] == ["self", "SYS"]
    assert links_of("a", "unknown")[0] == ["self", "peer"]
    assert _gpus.driver_version() == "580.82.07"
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert links_of("a", "b")[0] == ["self", "peer"]
    assert _gpus.driver_version() is None


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        ("80-real 90", "8.0", True),
        ("80-real 90", "8.6", True),  # machine code of an earlier minor version
        ("80-real 90", "9.0", True),
        ("80-real 90", "12.0", True),  # from PTX
        ("80-real 90", "7.5", False),
        ("90-real", "10.0", False),
        ("90-virtual", "10.0", True),
        ("90a-real", "9.0", True),
        ("all-major", "7.5", True),
    ],
)
def test_runs_on(architectures: str, capability: str, runs: bool) -> None:
    assert _gpus.runs_on(architectures, capability) is runs


def healthy() -> dict[str, Any]:
    gpu = {"name": "H200", "capability": "9.0", "memory": 1, "memory_free": 1, "uuid": "a"}
    return {
        "versions": {"torch-geometric": "2.8.1", "torch-cuda": "13.0", "nvidia-ml-py": "13"},
        "compiled": {"cuda": True, "nvcc": "13.0.88", "architectures": "80-real 90"},
        "gpu_present": True,
        "driver": "580.82.07",
        "gpus": [gpu, gpu],
        "links": [["self", "NV18"], ["NV18", "self"]],
        "limits": {"open_files": 65536, "shm_free": 1 << 30},
    }


def test_no_advice_when_all_is_well() -> None:
    assert list(info.advice(healthy())) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"compiled": {"cuda": False, "why_no_cuda": "no nvcc was found"}}, "PEERGRAPH_PIP_NVCC=1"),
        ({"versions": {"nvidia-ml-py": None}}, "pip install 'peergraph[nvml]'"),
        ({"versions": {"torch-cuda": None}}, "this torch is a CPU build"),
        ({"gpus": [], "links": []}, "CUDA_VISIBLE_DEVICES"),
        ({"driver": "550.54.15"}, "install driver 580 or later"),
        ({"compiled": {"architectures": "100"}}, "CUDAARCHS=native"),
        (
            {"links": [["self", "none"], ["none", "self"]]},
            "GPUs 0-1 cannot read each other",
        ),
        ({"versions": {"torch-geometric": None}}, "pip install 'peergraph[pyg]'"),
        ({"limits": {"open_files": 256}}, "ulimit -n"),
        ({"limits": {"shm_free": 64 << 20}}, "/dev/shm has 64.0 MiB free: stores need none of it"),
    ],
)
def test_advice(change: dict[str, Any], expected: str) -> None:
    facts = copy.deepcopy(healthy())
    for key, value in change.items():
        facts[key] = facts[key] | value if isinstance(value, dict) else value
    assert any(expected in line for line in info.advice(facts))


def test_says_what_was_compiled_or_how_to_get_it() -> None:
    compiled = {"cuda": True, "nvcc": "13.0.88", "architectures": "90", "why_no_cuda": None}
    assert info.cuda(compiled) == "nvcc 13.0.88 for 90"
    compiled |= {"cuda": False, "why_no_cuda": "no GPU was found"}
    expected = "not compiled (no GPU was found when it was built): PEERGRAPH_CUDA=ON make rebuild"
    assert info.cuda(compiled) == expected
    facts = info.collect()
    assert (facts["compiled"]["why_no_cuda"] is None) == _C.has_cuda
    assert any(info.cuda(facts["compiled"]) in line for line in info.render(facts))


def make_control_groups(root: Path, groups: str, limits: dict[str, str]) -> None:
    for name, text in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 2),
        ("0::/a\n", {"a/cpu.max": "20000 100000"}, 1),
        ("0::/a\n", {"a/cpu.max": "max 100000"}, 64),
        ("0::/a\n", {}, 64),
        (
            "3:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("3:cpu:/x\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_cpus_of_control_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    limits: dict[str, str],
    expected: int,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    make_control_groups(tmp_path, groups, limits)
    assert usable_cpus(tmp_path) == expected


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "4096", "a/b/memory.max": "max"}, 4096),
        ("0::/a\n", {"memory.max": "max"}, None),
        ("0::/not/mounted\n", {"memory.max": "8192"}, 8192),
        ("5:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": "123"}, 123),
        ("5:memory:/x\n", {"memory/memory.limit_in_bytes": str((1 << 63) - 4096)}, None),
    ],
)
def test_cgroup_memory(
    tmp_path: Path, groups: str, limits: dict[str, str], expected: int | None
) -> None:
    make_control_groups(tmp_path, groups, limits)
    assert cgroup_memory(tmp_path) == expected
