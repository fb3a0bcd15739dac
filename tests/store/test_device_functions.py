"""The header for users' kernels: compiled for the CPU and run there, and compiled for GPUs."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import peergraph
from peergraph import _C
from peergraph.memory import table_argument
from peergraph.store import EDGE, EdgeSource, GraphSource, Plan, Store, graph_argument
from tests.named_case import named_case

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_kernel.py"

# All of the header's functions, by node: sums of neighbours' features, by ids and by rows, and of
# edges' features.
PROGRAM = r"""
#include <peergraph.cuh>
using namespace peergraph;

extern "C" void run(const GraphView* graph, const TableView* nodes, const TableView* edges,
                    int64_t* degrees, int64_t* last, float* by_id, float* by_row, float* by_edge) {
  for (int64_t node = 0; node < graph->num_nodes(); ++node) {
    const int64_t count = degrees[node] = num_neighbors(*graph, node);
    last[node] = count ? neighbors(*graph, node, count - 1) : -1;
    const NeighborList from = neighbors(*graph, node);
    for (int64_t i = 0; i < from.size(); ++i) {
      by_id[node] += features<float>(*nodes, from[i])[1];
      by_row[node] += features_of_row<float>(*nodes, from.row(i))[1];
      by_edge[node] += *features<float>(*edges, edge_id(*graph, from, i));
    }
  }
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler on PATH")
    folder = tmp_path_factory.mktemp("device_functions")
    source, library = folder / "run.cpp", folder / "run.so"
    source.write_text(PROGRAM)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    include = f"-I{peergraph.include_path()}"
    subprocess.run([compiler, *flags, include, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def build(index_dtype: torch.dtype, plan: str | Plan, device: str = "cpu") -> Store:
    torch.manual_seed(1)
    edges = torch.randint(40, (2, 300)).to(index_dtype)
    edges[1] %= 37  # the last nodes have no in-neighbours
    source = GraphSource.homogeneous(
        40, EdgeSource(coo=edges), {"x": torch.randn(40, 3)}, {"w": torch.randn(300)}
    )
    return Store.build(source, plan=plan, device=device)


@pytest.mark.parametrize("plan", ["host", "replicated", "sharded"])
def test_reads_a_store_on_the_cpu(compiled: ctypes.CDLL, plan: str) -> None:
    for index_dtype in (torch.int32, torch.int64):
        with named_case(index_dtype):
            with build(index_dtype, plan) as store:
                x, w = store.node_table("x"), store.edge_table("w")
                arguments = [graph_argument(store), table_argument(x), table_argument(w)]
                degrees, last = np.zeros(40, np.int64), np.zeros(40, np.int64)
                sums = np.zeros((3, 40), np.float32)
                compiled.run(
                    *(ctypes.c_void_p(a.ctypes.data) for a in (*arguments, degrees, last, *sums))
                )
                source, destination = store.edge_index()
                expected = torch.zeros(40).index_add_(0, destination, x.read()[source, 1])
                by_edge = torch.zeros(40).index_add_(0, destination, w.read())
            assert degrees.tolist() == destination.bincount(minlength=40).tolist()
            ends = [source[destination == node] for node in range(40)]
            assert last.tolist() == [int(end[-1]) if len(end) else -1 for end in ends]
            np.testing.assert_allclose(sums[0], expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(sums[1], sums[0])
            np.testing.assert_allclose(sums[2], by_edge, rtol=1e-5, atol=1e-5)


def test_arguments_are_single_elements_as_cupy_takes_structs() -> None:
    with build(torch.int64, "sharded") as store:
        for argument in (graph_argument(store), table_argument(store.node_table("x"))):
            assert argument.shape == (1,)
            # What is passed to a kernel may take 4 KB, on older drivers.
            assert argument.nbytes < 4096
        with pytest.raises(KeyError):
            graph_argument(store, ("a", "b", "c"))
    with pytest.raises(RuntimeError, match="closed"):
        table_argument(store.node_table("x"))
    with pytest.raises(RuntimeError, match="closed"):
        graph_argument(store, EDGE)


def test_the_headers_are_complete_and_need_no_others() -> None:
    root = Path(peergraph.include_path())
    headers = [path for path in root.rglob("*") if path.is_file()]
    assert root / "peergraph.cuh" in headers
    for path in headers:
        for bracket, name in re.findall(r'#\s*include\s*([<"])([^>"]+)', path.read_text()):
            assert (bracket == '"' and (root / name).is_file()) or name == "cstdint", (path, name)


def test_all_functions_of_the_headers_are_for_devices() -> None:
    """NVRTC refuses functions for the host only; nvcc does not."""
    name = r"(?:operator\W+|\w+)"
    begins = re.compile(
        rf"^ {{0,2}}(?!template)(\w[\w:<>&* ]* [&*]?{name})\([^;{{}}]*\)(?: const)? {{", re.M
    )
    functions = []
    for path in Path(peergraph.include_path()).rglob("*.*h"):
        functions += begins.findall(path.read_text())
    assert len(functions) > 10
    assert [function for function in functions if "PG_HD" not in function] == []


def kernel_source() -> str:
    text = re.search(r'KERNEL = r"""(.*?)"""', EXAMPLE.read_text(), re.DOTALL)
    assert text is not None
    return text[1]


def test_compiles_with_nvcc(tmp_path: Path) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc on PATH")
    source = tmp_path / "kernel.cu"
    source.write_text(kernel_source())
    flags = ["-std=c++17", "-arch=sm_90", "-Werror=all-warnings", "-ptx"]
    include = f"-I{peergraph.include_path()}"
    subprocess.run([compiler, *flags, include, source, "-o", tmp_path / "kernel.ptx"], check=True)


def test_compiles_at_run_time() -> None:
    nvrtc = pytest.importorskip("cupy", reason="needs CuPy").cuda.nvrtc
    program = nvrtc.createProgram(kernel_source(), "kernel.cu", [], [])
    options = ("-std=c++17", "-arch=compute_90", f"-I{peergraph.include_path()}")
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    assert b"mean_of_neighbors" in bytes(nvrtc.getPTX(program))
    nvrtc.destroyProgram(program)


def test_the_example_runs_or_says_why_not() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "as peergraph.aggregate has them" in done.stdout or "nothing to run" in done.stdout


@pytest.mark.gpus(1)
def test_the_example_runs() -> None:
    pytest.importorskip("cupy", reason="needs CuPy")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=200
    )
    assert "as peergraph.aggregate has them" in done.stdout, done.stdout + done.stderr
    assert _C.has_cuda
