"""CUDA source of users' messages: the reduction, and the gradient of each operand.

Nothing of the size edges x columns is written: gradients make the messages again. All sums are in
a fixed order. A kernel for sources walks the transpose, one for destinations the rows, one for
edges the edges.
"""

from __future__ import annotations

from peergraph.aggregate.messages.expression import SYMBOLS, Expression

_HEAD = """
typedef long long wide;
struct Rows {
  const offset_t* indptr;
  const index_t* indices;
  const edge_t* edge_ids;  // null: the positions
};
struct Transpose {
  const offset_t* indptr;
  const row_t* rows;
  const offset_t* positions;
};
struct Operand {
  const real* values;
  wide columns;
  wide group;  // columns of the message that share one of the operand
};
__device__ __forceinline__ real at(const Operand& of, wide row, wide column) {
  // A division by a number that is not known costs as much as a read.
  return of.values[row * of.columns + (of.group == 1 ? column : column / of.group)];
}
__device__ __forceinline__ wide edge_of(const Rows& rows, wide position) {
  return rows.edge_ids ? (wide)rows.edge_ids[position] : position;
}
"""

_REDUCE = """
extern "C" __global__ void reduce(Rows rows, wide num_rows, wide columns, %(operands)s,
                                  real* out, offset_t* arg) {
  const wide threads = (wide)gridDim.x * blockDim.x;
  for (wide i = blockIdx.x * (wide)blockDim.x + threadIdx.x; i < num_rows * columns; i += threads) {
    const wide destination = i / columns, column = i - destination * columns;
    const wide begin = rows.indptr[destination], end = rows.indptr[destination + 1];
    real result = 0;
    wide best = -1;
    for (wide p = begin; p < end; ++p) {
      const wide source = rows.indices[p], edge = edge_of(rows, p);
      %(value)s
      %(reduce)s
    }
    %(finish)s
    out[i] = result;
    if (arg) arg[i] = (offset_t)best;
  }
}
"""

_OFFER = "if (best < 0 || %(better)s || (m != m && result == result)) { result = m; best = p; }"

_UPSTREAM = """
__device__ __forceinline__ real upstream(const Rows& rows, const real* grad, const offset_t* arg,
                                         wide destination, wide column, wide columns, wide p) {
  const wide i = destination * columns + column;
  %(upstream)s
}
"""

_GRAD_SOURCES = """
extern "C" __global__ void grad_%(symbol)s(Rows rows, Transpose transpose, wide count, wide columns,
                                     %(operands)s, const real* grad, const offset_t* arg,
                                     real* out) {
  const wide threads = (wide)gridDim.x * blockDim.x;
  for (wide i = blockIdx.x * (wide)blockDim.x + threadIdx.x; i < count * columns; i += threads) {
    const wide source = i / columns, column = i - source * columns;
    real sum = 0;
    for (wide q = transpose.indptr[source]; q < transpose.indptr[source + 1]; ++q) {
      const wide destination = transpose.rows[q], p = transpose.positions[q];
      const wide edge = edge_of(rows, p);
      const real d = upstream(rows, grad, arg, destination, column, columns, p);
      %(adjoint)s
      sum += g;
    }
    out[i] = sum;
  }
}
"""

_GRAD_DESTINATIONS = """
extern "C" __global__ void grad_%(symbol)s(Rows rows, wide count, wide columns, %(operands)s,
                                     const real* grad, const offset_t* arg, real* out) {
  const wide threads = (wide)gridDim.x * blockDim.x;
  for (wide i = blockIdx.x * (wide)blockDim.x + threadIdx.x; i < count * columns; i += threads) {
    const wide destination = i / columns, column = i - destination * columns;
    real sum = 0;
    for (wide p = rows.indptr[destination]; p < rows.indptr[destination + 1]; ++p) {
      const wide source = rows.indices[p], edge = edge_of(rows, p);
      const real d = upstream(rows, grad, arg, destination, column, columns, p);
      %(adjoint)s
      sum += g;
    }
    out[i] = sum;
  }
}
"""

# A number of lanes that is a power of two sums the columns that share a value of an edge.
_GRAD_EDGES = """
extern "C" __global__ void grad_%(symbol)s(Rows rows, const offset_t* row_of, wide count,
                                     wide columns, %(operands)s, const real* grad,
                                     const offset_t* arg, int lanes, real* out) {
  const wide threads = (wide)gridDim.x * blockDim.x, values = count * of_%(symbol)s.columns;
  const wide first = blockIdx.x * (wide)blockDim.x + threadIdx.x;
  const int lane = threadIdx.x %% lanes;
  // All lanes of a warp go on until none of them has a value left: they exchange.
  for (wide t = first; t - threadIdx.x %% 32 < values * lanes; t += threads) {
    const wide i = t / lanes, p = i / of_%(symbol)s.columns;
    const wide block = i - p * of_%(symbol)s.columns, group = of_%(symbol)s.group;
    real sum = 0;
    wide edge = 0;
    if (i < values) {
      const wide destination = row_of[p], source = rows.indices[p];
      edge = edge_of(rows, p);
      for (wide column = block * group + lane; column < (block + 1) * group; column += lanes) {
        const real d = upstream(rows, grad, arg, destination, column, columns, p);
        %(adjoint)s
        sum += g;
      }
    }
    for (int step = lanes / 2; step > 0; step /= 2)
      sum += __shfl_down_sync(0xffffffffu, sum, step, lanes);
    if (i < values && lane == 0) out[edge * of_%(symbol)s.columns + block] = sum;
  }
}
"""

_GRADIENTS = {
    "sources": _GRAD_SOURCES,
    "destinations": _GRAD_DESTINATIONS,
    "edges": _GRAD_EDGES,
}
_PLACES = {"sources": "source", "destinations": "destination", "edges": "edge"}


def source(expression: Expression, reduce: str, types: dict[str, str]) -> str:
    """Kernels `reduce` and `grad_<symbol>`.

    Args:
        types: C++ names of `real` (values), `offset_t` (of indptr and positions), `index_t` (of
            sources), `edge_t` (of edge ids) and `row_t` (of destinations in the transpose).
    """
    operands = ", ".join(f"Operand of_{name}" for name in expression.symbols)
    parts = [f"typedef {cpp} {name};" for name, cpp in types.items()]
    finish = "if (end > begin) result /= (real)(end - begin);" if reduce == "mean" else ""
    parts += [
        _HEAD,
        _REDUCE
        % {
            "operands": operands,
            "value": value_code(expression),
            "reduce": _reduce_code(reduce),
            "finish": finish,
        },
        _UPSTREAM % {"upstream": _upstream_code(reduce)},
    ]
    for symbol in expression.symbols:
        adjoint = value_code(expression) + "\n" + adjoint_code(expression, symbol)
        code = {"symbol": symbol, "operands": operands, "adjoint": adjoint}
        parts.append(_GRADIENTS[SYMBOLS[symbol]] % code)
    return "\n".join(parts)


def value_code(expression: Expression) -> str:
    """Returns statements that compute the message `m` of an edge and a column."""
    lines = []
    for number, step in enumerate(expression.steps):
        if step.operation is not None:
            code = step.operation.cuda.format(**_names(step.arguments))
        elif isinstance(step.value, str):
            code = f"at(of_{step.value}, {_PLACES[SYMBOLS[step.value]]}, column)"
        else:
            code = repr(step.value)
        lines.append(f"const real t{number} = (real){code};")
    lines.append(f"const real m = t{len(expression.steps) - 1};")
    lines.append("(void)m;")
    return "\n".join(lines)


def adjoint_code(expression: Expression, symbol: str) -> str:
    """Returns statements that compute the gradient `g` of a symbol from the message's, `d`."""
    depends = expression.depends_on(symbol)
    last = len(expression.steps) - 1
    lines = [f"real d{k} = 0;" for k in range(last) if depends[k]]
    lines.append(f"real d{last} = d;")
    for number in range(last, -1, -1):
        step = expression.steps[number]
        if step.operation is None or not depends[number]:
            continue
        names = {**_names(step.arguments), "t": f"t{number}", "d": f"d{number}"}
        for argument, adjoint in zip(step.arguments, step.operation.adjoints, strict=True):
            if depends[argument]:
                assert adjoint is not None
                lines.append(f"d{argument} += (real)({adjoint.format(**names)});")
    last_step = next(k for k, s in enumerate(expression.steps) if s.value == symbol)
    lines.append(f"const real g = d{last_step};")
    return "\n".join(lines)


def _names(arguments: tuple[int, ...]) -> dict[str, str]:
    return dict(zip("ab", (f"t{k}" for k in arguments), strict=False))


def _reduce_code(reduce: str) -> str:
    if reduce in ("sum", "mean"):
        return "result += m;"
    return _OFFER % {"better": "m > result" if reduce == "max" else "m < result"}


def _upstream_code(reduce: str) -> str:
    if reduce == "sum":
        return "return grad[i];"
    if reduce == "mean":
        return "return grad[i] / (real)(rows.indptr[destination + 1] - rows.indptr[destination]);"
    return "return (wide)arg[i] == p ? grad[i] : (real)0;"
