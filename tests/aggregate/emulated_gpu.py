"""Runs kernels that are compiled at run time on the CPU: one thread of one block does it all."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peergraph.aggregate.messages.cuda_source import source
from peergraph.aggregate.messages.expression import parse
from peergraph.aggregate.messages.launcher import Launcher

_DIALECT = r"""
#include <cmath>
using namespace std;
#define __global__
#define __device__
#define __forceinline__ inline
struct Index { long long x; };
static const Index gridDim = {1}, blockDim = {1}, blockIdx = {0}, threadIdx = {0};
template <typename T> T __shfl_down_sync(unsigned, T value, int, int) { return value; }
"""


def _entries(code: str) -> str:
    """Functions that take the arguments as CUDA's driver does: an address for each."""
    entries = []
    for name, text in re.findall(r'extern "C" __global__ void (\w+)\(([^)]*)\)', code):
        types = [" ".join(p.split()[:-1]) for p in text.split(",")]
        values = ", ".join(f"*({kind}*)arguments[{k}]" for k, kind in enumerate(types))
        entries.append(f'extern "C" void call_{name}(void** arguments) {{ {name}({values}); }}')
    return "\n".join(entries)


class Emulator:
    """Takes the place of `Launcher._launch`."""

    def __init__(self, compiler: str, folder: Path) -> None:
        self._compiler = compiler
        self._folder = folder
        self._libraries: dict[str, ctypes.CDLL] = {}

    def launch(self, launcher: Launcher, name: str, threads: int, arguments: list[Any]) -> None:
        code = source(parse(launcher.expression.text), launcher.reduce, dict(launcher._types()))
        if code not in self._libraries:
            self._libraries[code] = self._compile(code)
        passed = []
        for value in arguments:
            if value is None or isinstance(value, torch.Tensor):
                value = np.uint64(0 if value is None else value.data_ptr())
            # One lane: the emulated warp has a single thread.
            value = np.int32(1) if isinstance(value, np.int32) else value
            passed.append(np.ascontiguousarray(value))
        pointers = (ctypes.c_void_p * len(passed))(*(value.ctypes.data for value in passed))
        assert threads > 0
        getattr(self._libraries[code], f"call_{name}")(pointers)

    def _compile(self, code: str) -> ctypes.CDLL:
        stem = self._folder / f"message{len(self._libraries)}"
        stem.with_suffix(".cpp").write_text(_DIALECT + code + _entries(code))
        flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run(
            [self._compiler, *flags, f"{stem}.cpp", "-o", f"{stem}.so"], check=True, timeout=250
        )
        return ctypes.CDLL(f"{stem}.so")
