"""Graph attention in one pass over the edges; no value of an edge is kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import DTYPES, launch_on, sum_dtype
from peergraph.aggregate.kernels.attention import (
    AttentionInputs,
    OutputGradient,
    attention_backward,
    attention_forward,
)
from peergraph.aggregate.kernels.sddmm import sddmm
from peergraph.aggregate.kernels.torch_operator import is_traced
from peergraph.aggregate.ops.gradient_checks import once_differentiable
from peergraph.aggregate.ops.operands import check_operand, use_deterministic, view_if_aliased
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.autograd import Function
from peergraph.memory.device.plain_tensor import dense, plain


def attention_fits(x: Tensor) -> bool:
    """Returns whether :func:`attention` takes `x` [sources, heads, depth].

    On the CPU any. A GPU has kernels for heads whose depth is a power of two, as a number of
    16-byte vectors and up to 1024 bytes for all heads, or as a number of values and up to 128 for
    all heads. It takes others where they fit once each head is padded with zeros to a power of two.
    """
    return x.dim() == 3 and x.dtype in DTYPES and depth_for(x) is not None


def depth_for(x: Tensor) -> int | None:
    """Returns the depth of heads that a kernel takes, padding included, or None."""
    fitting: int | None = _fitting_depth(x.dtype, *x.shape[1:], x.device)
    return fitting


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _fitting_depth(dtype: torch.dtype, heads: int, depth: int, device: torch.device) -> int | None:
    if has_kernel(dtype, heads, depth, device):
        return depth
    vector = 16 // dtype.itemsize
    padded = vector << max(0, -(-depth // vector) - 1).bit_length()
    return padded if has_kernel(dtype, heads, padded, device) else None


def has_kernel(dtype: torch.dtype, heads: int, depth: int, device: torch.device) -> bool:
    """Returns whether there is a kernel for heads of exactly this depth."""
    return bool(_C.attention_fits(DTYPES[dtype], heads, depth, launch_on(device).device))


class AttentionSum(NamedTuple):
    """What :func:`peergraph.aggregate.attention` computes, without the structure."""

    x: Tensor
    left: Tensor | None = None
    right: Tensor | None = None
    att: Tensor | None = None
    negative_slope: float = 0.2
    self_loops: int | None = None
    deterministic: bool | None = None


_Cuts = tuple[Tensor, Tensor] | None


def attention(matrix: EdgeMatrix, of: AttentionSum, cuts: _Cuts = None) -> Tensor:
    """Sums columns by attention: see :func:`peergraph.aggregate.attention`.

    Args:
        matrix: the edges.
        of: the operands.
        cuts: with several vectors ``of.att`` [vectors, heads, depth]: the first row and the first
            column of each vector, and the numbers of rows and columns, [vectors + 1] int64 each.
            Edges from the columns of a vector end in its rows. On the CPU only.
    """
    _check_operands(matrix, of, cuts)
    x, left, right, att, negative_slope, self_loops, deterministic = of
    heads, depth = x.shape[1:]
    if heads * depth == 0:
        # There is no kernel, but all operands must be part of the graph of gradients.
        operands = [t for t in (x, left, right, att) if t is not None]
        nothing = torch.stack([t[:0].sum().to(x.dtype) for t in operands]).sum()
        return nothing.expand(matrix.num_destinations, heads, depth)
    fitting = depth if is_traced() else depth_for(x)
    if fitting is None:
        raise NotImplementedError(
            f"attention over {heads} heads of {depth} does not fit {x.device}"
        )
    if fitting != depth:
        x = F.pad(x, (0, fitting - depth))
        if att is not None and right is not None:
            right, att = (F.pad(t, (0, fitting - depth)) for t in (right, att))
    loops = -1 if self_loops is None else self_loops
    out = _attend(matrix, x, left, right, att, float(negative_slope), loops, cuts, deterministic)
    return out if fitting == depth else out[..., :depth].contiguous()


def _check_operands(matrix: EdgeMatrix, of: AttentionSum, cuts: _Cuts) -> None:
    x, left, right, att, _, self_loops, _ = of
    check_operand("x", x, matrix.device, matrix.num_sources, "sources")
    if x.dim() != 3:
        raise ValueError(f"x must be [sources, heads, depth], got {list(x.shape)}")
    heads, depth = x.shape[1:]
    if (left is None) == (att is None):
        raise ValueError(
            "either left or att must be given, got " + ("both" if att is not None else "none")
        )
    if att is not None and right is None:
        raise ValueError("att needs right, got none")
    of_right = (matrix.num_destinations, *((heads,) if att is None else (heads, depth)))
    _check_shape("left", left, (matrix.num_sources, heads), x)
    _check_shape("right", right, of_right, x)
    vectors = () if cuts is None else (cuts[0].shape[0] - 1,)
    _check_shape("att", att, (*vectors, heads, depth), x)
    if cuts is not None and x.device.type != "cpu":
        raise NotImplementedError(f"attention by several vectors runs on the CPU, got {x.device}")
    ends = min(matrix.num_sources, matrix.num_destinations)
    if self_loops is not None and not 0 <= self_loops <= ends:
        raise ValueError(f"self_loops must be in 0..{ends}, got {self_loops}")
    if att is not None and right is not None and right.dtype != x.dtype:
        raise TypeError(f"x and right must have one dtype, got {x.dtype} and {right.dtype}")


def _attend(
    matrix: EdgeMatrix,
    x: Tensor,
    left: Tensor | None,
    right: Tensor | None,
    att: Tensor | None,
    negative_slope: float,
    self_loops: int,
    cuts: _Cuts,
    deterministic: bool | None,
) -> Tensor:
    """Sums columns by attention, with heads of a depth for which there is a kernel."""
    score_dtype = sum_dtype(x.dtype)
    left = None if left is None else left.to(score_dtype)
    if right is not None:
        right = (
            view_if_aliased(right, x)
            if left is None
            else view_if_aliased(right.to(score_dtype), left)
        )
    att = None if att is None else att.to(score_dtype)
    fixed = use_deterministic(matrix.deterministic if deterministic is None else deterministic)
    gradients = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, left, right, att)
    )
    transpose = matrix.gradient_matrix("auto", fixed) if gradients else None
    # Operands are made dense here and not in the function's forward: torch 2.4 compiles wrong
    # gradients if forward and backward call operations of the same name, and the backward makes the
    # incoming gradient dense.
    tensors = map(aligned, (x, left, right, att))
    result: Tensor = Attention.apply(
        *tensors, matrix, self_loops, negative_slope, cuts, transpose, fixed
    )
    return result


def _check_shape(name: str, tensor: Tensor | None, shape: tuple[int, ...], x: Tensor) -> None:
    if tensor is None:
        return
    if not is_traced():
        plain(name, tensor)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
    if tensor.device != x.device:
        raise ValueError(f"{name} must be on {x.device} as x, got {tensor.device}")
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} must be a float tensor, got {tensor.dtype}")


def aligned(tensor: Tensor | None) -> Tensor | None:
    """Returns the tensor dense, at an address that is a multiple of 16 bytes."""
    if tensor is None:
        return None
    tensor = dense(tensor)
    return tensor.clone() if not is_traced() and tensor.data_ptr() % 16 else tensor


def _dots(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns products summed over the last dimension, [rows, heads] of `dtype`, that of sums."""
    if is_traced():
        return (left.to(dtype) * right.to(dtype)).sum(-1)
    # With one edge from each row to itself, the kernel reads both operands once; torch would write
    # the products, those of half precision and its own copies of the operands in float32.
    rows, heads, depth = left.shape
    ids = torch.int32 if rows < 2**31 - 1 else torch.int64
    offsets = torch.arange(rows + 1, dtype=ids, device=left.device)
    loops = EdgeMatrix(offsets, offsets[:-1], rows, max_chunks=0)
    of_left, of_right = left.flatten(1), right.flatten(1)
    return sddmm(of_left, of_right, loops.tensors, "mul", "uu", heads, depth, wide=True)


def _sums_of_vectors(shares: Tensor, cuts: _Cuts) -> Tensor:
    """Returns the gradient of `att` from each row's share, [rows, heads, depth]."""
    if cuts is None:
        return shares.sum(0)
    rows = torch.arange(shares.shape[0], device=shares.device)
    of_vectors = EdgeMatrix(cuts[0], rows, shares.shape[0])
    sums = of_vectors.sum_messages(shares.flatten(1), None, "copy_u")
    return sums.view(-1, *shares.shape[1:])


class Attention(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        left: Tensor | None,
        right: Tensor | None,
        att: Tensor | None,
        matrix: EdgeMatrix,
        loops: int,
        slope: float,
        cuts: _Cuts,
        transpose: EdgeMatrix | None,
        fixed: bool,
    ) -> Tensor:
        inputs = AttentionInputs(x, left, right, att, loops, slope, *(cuts or ()))
        out, lse = attention_forward(inputs, matrix.tensors)
        ctx.save_for_backward(x, left, right, att, out, lse)
        ctx.matrix, ctx.loops, ctx.slope, ctx.cuts, ctx.transpose, ctx.fixed = (
            matrix, loops, slope, cuts, transpose, fixed
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable("attention in one pass")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, left, right, att, out, lse = ctx.saved_tensors
        output_grad = aligned(grad)
        assert output_grad is not None
        needs = ctx.needs_input_grad[:4]
        of_columns = needs[0] or needs[1]
        of_rows = (needs[2] and right is not None) or needs[3]
        inputs = AttentionInputs(x, left, right, att, ctx.loops, ctx.slope, *(ctx.cuts or ()))
        output = OutputGradient(output_grad, lse, _dots(output_grad, out, lse.dtype))

        def run(transpose: EdgeMatrix | None, to_columns: bool, to_rows: bool) -> list[Tensor]:
            rows, by_column = ctx.matrix.tensors, None if transpose is None else transpose.tensors
            return list(attention_backward(inputs, output, rows, by_column, to_columns, to_rows))

        gradients: list[Tensor] = [lse.new_zeros(0)] * 4
        on_gpu = x.device.type != "cpu"
        by_source = of_columns and att is None and not ctx.fixed
        at_once = on_gpu and (ctx.transpose is None or by_source)
        if at_once:
            # A pass by destination writes the gradients of destinations in any case.
            gradients = run(ctx.transpose, of_columns, of_rows or ctx.transpose is None)
        else:
            if of_columns:
                gradients[:2] = run(ctx.transpose, True, False)[:2]
            if of_rows:
                gradients[2:] = run(None, False, True)[2:]
        of_att = _sums_of_vectors(gradients[3], ctx.cuts) if needs[3] else None
        return (
            gradients[0].to(x.dtype) if needs[0] else None,
            gradients[1] if needs[1] and left is not None else None,
            gradients[2].to(right.dtype) if needs[2] and right is not None else None,
            of_att,
            *(None,) * 6,
        )
