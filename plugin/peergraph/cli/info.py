"""`peergraph info`: versions, the compiled module, GPUs, links, limits and advice; or a store."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from peergraph import _C
from peergraph.cli import _gpus, _info_store, _limits
from peergraph.memory import Topology
from peergraph.store.placement.partition_solver import solve

PACKAGES = {
    "peergraph": ["peergraph"],
    "torch": ["torch"],
    "torch-geometric": ["torch-geometric"],
    "dgl": ["dgl"],
    "cupy": ["cupy", "cupy-cuda13x", "cupy-cuda12x"],
    "numpy": ["numpy"],
    "nvidia-ml-py": ["nvidia-ml-py"],
}
LOADER_BYTES = 256 << 20
"""What batches of a few workers take on their way."""
Facts = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", nargs="?", help="a saved store to describe, in place of this machine")
    add("--json", action="store_true", help="print one JSON object; sizes in bytes")
    add("--picture", metavar="FILE", help="draw the store's degrees, as PNG or SVG")


def run(args: argparse.Namespace) -> int:
    """Prints the facts. Returns the exit status: 2 if the folder is not a store."""
    if args.folder is not None:
        return _info_store.run(args.folder, args.json, args.picture)
    if args.picture is not None:
        print("peergraph info: --picture draws a store: name its folder", file=sys.stderr)
        return 2
    facts = collect()
    print(json.dumps(facts, indent=2) if args.json else "\n".join(render(facts)))
    return 0


def collect() -> Facts:
    gpus = _gpus.find_gpus()
    facts: Facts = {
        "versions": versions(),
        "compiled": {
            "cuda": _C.has_cuda,
            "why_no_cuda": _C.no_cuda or None,
            "compiler": _C.compiler,
            "nvcc": _C.cuda_compiler or None,
            "architectures": _C.cuda_architectures or None,
            "max_shards": _C.max_shards,
        },
        "gpu_present": _gpus.has_device_file(),
        "driver": _gpus.driver_version(),
        "gpus": [asdict(gpu) for gpu in gpus],
        "links": _gpus.link_matrix(gpus),
        "limits": _limits.host_limits(),
    }
    return facts | {"advice": list(advice(facts))}


def versions() -> dict[str, str | None]:
    """Returns versions by package, from metadata: importing a framework would take seconds."""
    by_package: dict[str, str | None] = {"python": platform.python_version()}
    for package, names in PACKAGES.items():
        by_package[package] = next(filter(None, map(installed, names)), None)
    return by_package | {"torch-cuda": torch.version.cuda}


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def advice(facts: Facts) -> Iterator[str]:
    """Yields advice about missing parts, the most important first."""
    compiled = facts["compiled"]
    if facts["gpu_present"]:
        yield from gpu_advice(facts)
    if compiled["cuda"]:
        for index, gpu in enumerate(facts["gpus"]):
            if not _gpus.runs_on(compiled["architectures"], gpu["capability"]):
                yield (
                    f"GPU {index} has compute capability {gpu['capability']}, the CUDA part was "
                    f"compiled for {compiled['architectures']}: set CUDAARCHS=native and reinstall"
                )
    yield from reach_advice(facts["links"])
    if facts["versions"]["torch-geometric"] is None:
        yield "torch-geometric is missing, peergraph_pyg needs it: pip install 'peergraph[pyg]'"
    files = facts["limits"]["open_files"]
    if files is not None and files < 1024:
        yield f"only {files} files may be open, data loaders want more: ulimit -n 4096"
    shared = facts["limits"]["shm_free"]
    if shared < LOADER_BYTES:
        yield (
            f"/dev/shm has {size(shared)} free: stores need none of it, but loaders with workers "
            "pass batches through it: num_workers=0, or a larger one (docker run --shm-size=1g)"
        )


def reach_advice(links: list[list[str]]) -> Iterator[str]:
    """Yields what follows from pairs of GPUs that cannot read each other's memory."""
    count = len(links)
    pairs = [(i, j) for i in range(count) for j in range(i) if links[i][j] == "none"]
    if not pairs:
        return
    copies = solve(Topology.default(count).masked(pairs)).copies
    names = ", ".join(f"{j}-{i}" for i, j in pairs)
    yield (
        f"GPUs {names} cannot read each other's memory: stores place copies, so that each GPU "
        f"reads only GPUs in its reach (a GPU has at most {copies} of {count} parts of sharded "
        "rows); writes between such GPUs, gradients and state of trained tables go over the host, "
        "rows of full graphs by NCCL"
    )


def gpu_advice(facts: Facts) -> Iterator[str]:
    """Yields the reasons why the machine's GPU cannot be used."""
    compiled, driver = facts["compiled"], facts["driver"]
    torch_cuda = facts["versions"]["torch-cuda"]
    if not compiled["cuda"]:
        yield (
            "a GPU is here, but the CUDA part was not compiled "
            f"({compiled['why_no_cuda']} when it was built): PEERGRAPH_CUDA=ON make rebuild; "
            "without nvcc set PEERGRAPH_PIP_NVCC=1 too, to take it from pip"
        )
    if facts["versions"]["nvidia-ml-py"] is None:
        yield (
            "nvidia-ml-py is missing, it tells the driver's version and the kinds of links: "
            "pip install 'peergraph[nvml]'"
        )
    if torch_cuda is None:
        yield "a GPU is here, but this torch is a CPU build: install one built with CUDA"
    elif not facts["gpus"]:
        yield (
            "a GPU is here, but torch cannot use it: see CUDA_VISIBLE_DEVICES, and whether driver "
            f"{driver or '(unknown)'} is new enough for CUDA {torch_cuda}"
        )
    if compiled["cuda"] and driver is not None:
        oldest = _gpus.OLDEST_DRIVER.get(int(compiled["nvcc"].split(".")[0]), 0)
        if int(driver.split(".")[0]) < oldest:
            yield (
                f"driver {driver} does not run code of nvcc {compiled['nvcc']}: install driver "
                f"{oldest} or later, or reinstall with CUDACXX set to an older nvcc"
            )


def render(facts: Facts) -> Iterator[str]:
    compiled, limits = facts["compiled"], facts["limits"]
    yield from section("Versions", facts["versions"].items())
    yield from section("Compiled", {"cpu": compiled["compiler"], "cuda": cuda(compiled)}.items())
    yield from section("GPUs", gpu_rows(facts))
    if len(facts["links"]) > 1:
        columns = range(len(facts["links"]))
        yield from section("Links", [("", "".join(f"{f'GPU {j}':8}" for j in columns))])
        for i, row in enumerate(facts["links"]):
            yield f"  {f'GPU {i}':18}" + "".join(f"{link:8}" for link in row).rstrip()
    rows = {
        "CPUs": limits["cpus"],
        "memory available": size(limits["memory_available"]),
        "cgroup memory": size(limits["cgroup_memory"]),
        "/dev/shm free": size(limits["shm_free"]),
        "locked memory": size(limits["memlock"]),
        "open files": "unlimited" if limits["open_files"] is None else limits["open_files"],
        "ranks per table": f"at most {compiled['max_shards']}",
    }
    yield from section("Limits", rows.items())
    if facts["advice"]:
        yield "What to do"
        yield from (f"  - {line}" for line in facts["advice"])


def cuda(compiled: Facts) -> str:
    """Describes the architectures of the CUDA part, or how to get it."""
    if compiled["cuda"]:
        return f"nvcc {compiled['nvcc']} for {compiled['architectures']}"
    why = compiled["why_no_cuda"]
    return f"not compiled ({why} when it was built): PEERGRAPH_CUDA=ON make rebuild"


def gpu_rows(facts: Facts) -> Iterator[tuple[str, str]]:
    if not facts["gpus"]:
        yield "none", "a GPU is here, but not usable" if facts["gpu_present"] else ""
    for index, gpu in enumerate(facts["gpus"]):
        memory = f"{size(gpu['memory_free'])} free of {size(gpu['memory'])}"
        yield f"GPU {index}", f"{gpu['name']}, compute capability {gpu['capability']}, {memory}"
    if facts["driver"]:
        yield "driver", facts["driver"]


def section(title: str, rows: Iterable[tuple[str, object]]) -> Iterator[str]:
    yield title
    for name, value in rows:
        yield f"  {name:18}{'-' if value is None else value}".rstrip()


def size(count: int | None) -> str:
    if count is None:
        return "unlimited"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
