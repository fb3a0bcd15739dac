"""cuSPARSE's sparse times dense product, called directly, so that its algorithm can be chosen."""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from pathlib import Path

import torch
from harness.gpu_time import gpu_ms
from torch import Tensor

# cusparseSpMMAlg_t, of those for CSR.
ALGORITHMS = {"default": 0, "alg1": 4, "alg2": 6, "alg3": 12}
_INDEX_TYPE = {torch.int32: 2, torch.int64: 3}
_FLOAT32 = _BASE_ZERO = _NOT_TRANSPOSED = 0
_ROW_MAJOR = 2
_LIBRARY = "libcusparse.so.12"


class Product:
    """matrix @ x for float32 x, which cuSPARSE has prepared for.

    Args:
        indptr, indices, values: CSR on a GPU; both index tensors int32, or both int64.
        columns: of the matrix.
        width: of x.
        algorithm: one of `ALGORITHMS`.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        values: Tensor,
        columns: int,
        width: int,
        algorithm: str,
    ) -> None:
        self.algorithm = algorithm
        self._library = _load()
        self._shape = indptr.numel() - 1, width
        self._kept = indptr, indices, values
        self._handle = ctypes.c_void_p()
        self._call("cusparseCreate", ctypes.byref(self._handle))
        self._call("cusparseSetStream", self._handle, _stream())
        matrix = ctypes.c_void_p()
        kind = _INDEX_TYPE[indptr.dtype]
        sizes = (ctypes.c_int64(n) for n in (indptr.numel() - 1, columns, indices.numel()))
        data = (ctypes.c_void_p(tensor.data_ptr()) for tensor in self._kept)
        kinds = (ctypes.c_int(k) for k in (kind, kind, _BASE_ZERO, _FLOAT32))
        self._call("cusparseCreateCsr", ctypes.byref(matrix), *sizes, *data, *kinds)
        x, y = values.new_empty(columns, width), values.new_empty(self._shape)
        self._x, self._y = self._dense(x), self._dense(y)
        self._one, self._zero, size = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_size_t()
        operation = ctypes.c_int(_NOT_TRANSPOSED)
        self._arguments = (
            *(self._handle, operation, operation, ctypes.byref(self._one), matrix, self._x),
            *(ctypes.byref(self._zero), self._y, ctypes.c_int(_FLOAT32)),
            ctypes.c_int(ALGORITHMS[algorithm]),
        )
        self._call("cusparseSpMM_bufferSize", *self._arguments, ctypes.byref(size))
        self._buffer = torch.empty(max(1, size.value), dtype=torch.uint8, device=values.device)
        self._scratch = ctypes.c_void_p(self._buffer.data_ptr())
        self._call("cusparseSpMM_preprocess", *self._arguments, self._scratch)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, width] from [columns, width]. Does not synchronise."""
        x, y = x.contiguous(), x.new_empty(self._shape)
        for dense, tensor in ((self._x, x), (self._y, y)):
            self._call("cusparseDnMatSetValues", dense, ctypes.c_void_p(tensor.data_ptr()))
        self._call("cusparseSetStream", self._handle, _stream())
        self._call("cusparseSpMM", *self._arguments, self._scratch)
        return y

    def _dense(self, tensor: Tensor) -> ctypes.c_void_p:
        result = ctypes.c_void_p()
        sizes = (ctypes.c_int64(n) for n in (*tensor.shape, tensor.stride(0)))
        kinds = ctypes.c_int(_FLOAT32), ctypes.c_int(_ROW_MAJOR)
        data = ctypes.c_void_p(tensor.data_ptr())
        self._call("cusparseCreateDnMat", ctypes.byref(result), *sizes, data, *kinds)
        return result

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._library, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}")


class _Autograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forth, back):
        ctx.back = back
        return forth(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.back(grad), None, None


def fastest(indptr: Tensor, indices: Tensor, values: Tensor, columns: int, width: int) -> Product:
    """The product by the algorithm that is fastest here, as torch has it. Synchronises."""
    x = torch.rand(columns, width, device=values.device)
    best: tuple[float, Product] | None = None
    for algorithm in ALGORITHMS:
        try:
            product = Product(indptr, indices, values, columns, width, algorithm)
            milliseconds = gpu_ms(partial(product, x), rounds=3, warmup=1)
        except RuntimeError as error:  # This one does not take the matrix, or not the memory.
            print(f"cuSPARSE {algorithm}: {error}", file=sys.stderr)
            continue
        if best is None or milliseconds < best[0]:
            best = milliseconds, product
    if best is None:
        raise RuntimeError("no algorithm of cuSPARSE takes the matrix")
    shape = (indptr.numel() - 1, columns)
    matrix = torch.sparse_csr_tensor(indptr, indices, values, shape, check_invariants=False)
    torch.testing.assert_close(best[1](x), matrix @ x, rtol=1e-4, atol=1e-4)
    return best[1]


def with_gradient(forth: Product, back: Product, x: Tensor) -> Tensor:
    """forth(x), whose gradient is `back` of the result's gradient."""
    result: Tensor = _Autograd.apply(x, forth, back)
    return result


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _load() -> ctypes.CDLL:
    """The library that torch has loaded, or one from pip."""
    packages = (Path(path) / "nvidia" for path in sys.path)
    files = (str(file) for folder in packages for file in folder.glob(f"*/lib/{_LIBRARY}"))
    for name in (_LIBRARY, *files):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError(f"{_LIBRARY} is not found")
