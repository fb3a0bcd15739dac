// Python bindings of steps beside aggregation: of rows, and of edges of mini-batches. They compare
// the dtypes and sizes of all tensors.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "aggregate/activation.h"
#include "aggregate/bound_edges.h"
#include "aggregate/bound_operands.h"
#include "aggregate/edge_grouping.h"
#include "aggregate/joined_edges.h"
#include "aggregate/joined_rows.h"
#include "aggregate/row_copy.h"
#include "aggregate/row_products.h"
#include "aggregate/spmm.h"
#include "common/bind.h"
#include "common/check.h"
#include "common/on_device.h"
#include "memory/lease.h"

namespace py = pybind11;

namespace peergraph {
namespace {

using OptionalTensor = std::optional<TensorRef>;

/// `out` [rows, at least the columns of the operands]: rows are written from `first_column` on.
void bind_copy_rows(const Leased<BoundOperands>& operands, DType dtype, int64_t first_column,
                    const TensorRef& out, const Launch& launch) {
  const Opened opened(operands);
  const DType out_dtype = out.dtype("out");
  check_out_dtype(dtype, out_dtype);
  const int64_t stride = out.size(1), num_rows = rows_of(out, "out", out_dtype, stride);
  PG_CHECK_ARG(first_column >= 0 && first_column <= stride &&
                   opened->operands.columns <= stride - first_column,
               "out has too few columns");
  opened->check_x(num_rows, dtype);
  const RowCopy op{**opened,  dtype,
                   num_rows,  static_cast<char*>(out.data) + first_column * out.item_bytes,
                   out_dtype, stride};
  PG_ON_DEVICE(launch.device, copy_rows_cpu(op, launch.num_threads), copy_rows_cuda(op, launch));
}

/// The scale of kept elements, so that their expected value does not change.
double scale_of(uint32_t threshold) {
  return threshold >= kRandomRange ? 0 : double{kRandomRange} / (kRandomRange - threshold);
}

uint32_t threshold_of(double p) {
  PG_CHECK_ARG(p >= 0 && p <= 1, "p must be in 0..1, got " + std::to_string(p));
  return static_cast<uint32_t>(std::lround(p * kRandomRange));
}

void bind_activate(const TensorRef& x, const OptionalTensor& bias, bool relu, double p,
                   const OptionalTensor& seed, const OptionalTensor& bits, const TensorRef& out,
                   const Launch& launch) {
  const uint32_t threshold = threshold_of(p);
  PG_CHECK_ARG(threshold == 0 || seed, "dropout needs a seed");
  const DType dtype = x.dtype("x");
  const int64_t columns = x.size(1), num_rows = rows_of(x, "x", dtype, columns);
  Activation op{dtype,
                num_rows,
                columns,
                x.data,
                bias ? bias->values("bias", sum_dtype(dtype), columns) : nullptr,
                relu,
                threshold,
                scale_of(threshold),
                reinterpret_cast<const uint64_t*>(int64_values(seed, "seed", 1)),
                nullptr,
                out.values("out", dtype, num_rows * columns)};
  if (bits) op.bits = bits->byte_values("bits", num_rows * op.bytes_of_row());
  PG_ON_DEVICE(launch.device, activate_cpu(op, launch.num_threads), activate_cuda(op, launch));
}

void bind_activate_backward(const TensorRef& grad, const TensorRef& bits, double p,
                            const TensorRef& out, const OptionalTensor& partial,
                            const Launch& launch) {
  const DType dtype = grad.dtype("grad");
  const int64_t columns = grad.size(1), num_rows = rows_of(grad, "grad", dtype, columns);
  ActivationGradient op{dtype,
                        num_rows,
                        columns,
                        grad.data,
                        nullptr,
                        scale_of(threshold_of(p)),
                        out.values("out", dtype, num_rows * columns),
                        pointer(partial),
                        activation_parts(num_rows)};
  if (partial) op.num_parts = rows_of(*partial, "partial", sum_dtype(dtype), columns);
  PG_CHECK_ARG(op.num_parts > 0, "partial must have a row");
  op.bits = bits.byte_values("bits", num_rows * op.bytes_of_row());
  PG_ON_DEVICE(launch.device, activate_backward_cpu(op, launch.num_threads),
               activate_backward_cuda(op, launch));
}

void check_few_edges(const CsrMatrix& matrix) {
  PG_CHECK_ARG(matrix.num_edges < int64_t{1} << 31 && matrix.num_rows < int64_t{1} << 31,
               "edges are grouped by column up to 2^31");
}

void bind_rank_edges(const CsrMatrix& matrix, const TensorRef& counts, const TensorRef& ranks,
                     const Launch& launch) {
  check_few_edges(matrix);
  const EdgeRanks op{matrix, counts.int32_values("counts", matrix.num_columns),
                     ranks.int32_values("ranks", matrix.num_edges)};
  PG_ON_DEVICE(launch.device, rank_edges_cpu(op), rank_edges_cuda(op, launch));
}

void bind_place_edges(const CsrMatrix& matrix, const TensorRef& indptr, const TensorRef& ranks,
                      const TensorRef& rows, const TensorRef& edge_ids, const Launch& launch) {
  check_few_edges(matrix);
  const EdgePlaces op{matrix, indptr.int32_values("indptr", matrix.num_columns + 1),
                      ranks.int32_values("ranks", matrix.num_edges),
                      rows.int32_values("rows", matrix.num_edges),
                      edge_ids.int32_values("edge_ids", matrix.num_edges)};
  PG_ON_DEVICE(launch.device, place_edges_cpu(op), place_edges_cuda(op, launch));
}

/// Edges, or None for one from each node to itself; the bounds of sources and of destinations, the
/// first column key, the first row key and its stride.
using BoundRelation =
    std::tuple<std::optional<BoundEdges>, int64_t, int64_t, int64_t, int64_t, int64_t>;

constexpr int64_t kMostJoined = (int64_t{1} << 31) - 1;

JoinedRelation joined_relation(const BoundRelation& bound, int64_t num_rows, int64_t num_columns) {
  const auto& [edges, num_sources, num_destinations, column, row, stride] = bound;
  JoinedRelation relation;
  if (edges) {
    relation.sources = edges->row(0);
    relation.destinations = edges->row(1);
    relation.id_bytes = edges->tensor.id_bytes("edges");
    relation.num_edges = edges->num_edges();
  } else {
    PG_CHECK_ARG(num_destinations <= num_sources, "there are more destinations than sources");
    relation.num_edges = num_destinations;
  }
  relation.num_sources = num_sources;
  relation.num_destinations = num_destinations;
  relation.column_base = column;
  relation.row_base = row;
  relation.row_stride = stride;
  PG_CHECK_ARG(column >= 0 && num_sources >= 0 && num_sources <= num_columns - column,
               "num_columns is too small for a relation");
  PG_CHECK_ARG(
      row >= 0 && stride >= 1 && num_destinations >= 0 &&
          (num_destinations == 0 || checked_product(num_destinations - 1, stride) < num_rows - row),
      "num_rows is too small for a relation");
  return relation;
}

KeySegments key_segments(const char* name, int64_t num_keys, const std::vector<int64_t>& starts) {
  PG_CHECK_ARG(num_keys >= 0 && num_keys < kMostJoined,
               std::string(name) + " must be below 2^31 - 1, got " + std::to_string(num_keys));
  PG_CHECK_ARG(!starts.empty() && starts.front() == 0 && starts.back() <= num_keys &&
                   std::is_sorted(starts.begin(), starts.end()),
               std::string(name) + ": segments must start at 0 and ascend to the number of keys");
  return {num_keys, starts, {}};
}

/// Gives each segment as many numbers as any edges of these relations can need.
void fix_cuts(const char* name, KeySegments& segments,
              const std::vector<std::array<int64_t, 3>>& ranges) {
  const std::vector<int64_t>& starts = segments.starts;
  const auto segment_of = [&starts](int64_t key) {
    return std::upper_bound(starts.begin(), starts.end(), key) - starts.begin() - 1;
  };
  std::vector<int64_t> edges(starts.size(), 0);
  for (const auto& [first, last, count] : ranges) {
    if (count == 0 || last < first) continue;
    PG_CHECK_ARG(segment_of(first) == segment_of(last),
                 std::string(name) + ": the keys of a relation must be of one segment");
    edges[segment_of(first)] += count;
  }
  segments.fixed_cuts.push_back(0);
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t end = i + 1 < starts.size() ? starts[i + 1] : segments.num_keys;
    segments.fixed_cuts.push_back(segments.fixed_cuts.back() + std::min(end - starts[i], edges[i]));
  }
}

void fix_cuts(EdgeJoin& op) {
  std::vector<std::array<int64_t, 3>> rows, columns;
  for (const JoinedRelation& each : op.relations) {
    const int64_t last_row = each.row_base + (each.num_destinations - 1) * each.row_stride;
    rows.push_back({each.row_base, last_row, each.num_edges});
    const int64_t last_column = each.column_base + each.num_sources - 1;
    columns.push_back({each.column_base, last_column, each.num_edges});
  }
  fix_cuts("row_starts", op.rows, rows);
  fix_cuts("column_starts", op.columns, columns);
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>, int64_t, std::vector<int64_t>, int64_t,
           int64_t>
bind_join_edges(const std::vector<BoundRelation>& relations, int64_t num_rows,
                const std::vector<int64_t>& row_starts, int64_t num_columns,
                const std::vector<int64_t>& column_starts, const OptionalTensor& row_keys,
                const OptionalTensor& row_segments, const OptionalTensor& column_keys,
                const TensorRef& indptr, const TensorRef& indices, const OptionalTensor& edge_ids,
                const OptionalTensor& by_column, const OptionalTensor& rows_of,
                const OptionalTensor& positions, KeyNumbering numbering, const Schedule& schedule,
                const Launch& launch, [[maybe_unused]] const py::function& allocate) {
  EdgeJoin op;
  op.rows = key_segments("num_rows", num_rows, row_starts);
  op.columns = key_segments("num_columns", num_columns, column_starts);
  PG_CHECK_ARG(!relations.empty(), "there must be a relation");
  int64_t num_edges = 0;
  for (const BoundRelation& bound : relations) {
    op.relations.push_back(joined_relation(bound, num_rows, num_columns));
    op.relations.back().first_edge = num_edges;
    num_edges += op.relations.back().num_edges;
  }
  PG_CHECK_ARG(num_edges < kMostJoined, "edges are joined up to 2^31 - 2");
  op.numbering = numbering;
  if (numbering == KeyNumbering::kFixed) fix_cuts(op);
  const bool is_all = numbering == KeyNumbering::kAll;
  const int64_t most_rows = is_all ? num_rows : std::min(num_rows, num_edges);
  const int64_t most_columns = is_all ? num_columns : std::min(num_columns, num_edges);
  PG_CHECK_ARG(row_keys.has_value() != is_all && row_segments.has_value() != is_all &&
                   column_keys.has_value() != is_all,
               "keys and segments are given unless all keys are numbered");
  if (!is_all) {
    op.row_keys = row_keys->int32_values("row_keys", most_rows);
    op.row_segments = row_segments->int32_values("row_segments", most_rows);
    op.column_keys = column_keys->int32_values("column_keys", most_columns);
  }
  op.indptr = indptr.int32_values("indptr", most_rows + 1);
  op.indices = indices.int32_values("indices", num_edges);
  if (edge_ids) op.edge_ids = edge_ids->int32_values("edge_ids", num_edges);
  PG_CHECK_ARG(by_column.has_value() == rows_of.has_value() &&
                   by_column.has_value() == positions.has_value(),
               "by_column, rows_of and positions are given together");
  if (by_column) op.by_column = by_column->int32_values("by_column", most_columns + 1);
  if (rows_of) op.rows_of = rows_of->int32_values("rows_of", num_edges);
  if (positions) op.positions = positions->int32_values("positions", num_edges);
  op.chunk = schedule.chunk;
  op.long_row = schedule.long_row;
  JoinedCounts counts;
  {
    const py::gil_scoped_release release;
    PG_ON_DEVICE(launch.device, counts = join_edges_cpu(op),
                 counts = join_edges_cuda(op, launch, with_gil(allocate)));
  }
  const auto& [rows, columns, bad_edge] = counts;
  return {rows.cuts, rows.lasts, rows.chunks, columns.cuts, columns.chunks, bad_edge};
}

void bind_group_rows(const TensorRef& keys, const TensorRef& row_indptr,
                     const std::vector<int64_t>& row_cuts, const std::vector<int64_t>& groups,
                     const std::vector<int64_t>& strides, const std::vector<int64_t>& place_starts,
                     const std::vector<int64_t>& sizes, const TensorRef& owners,
                     const OptionalTensor& places, const TensorRef& indptr, const TensorRef& rows,
                     const OptionalTensor& edge_indptr, const OptionalTensor& edges,
                     int64_t num_edges, const Launch& launch,
                     [[maybe_unused]] const py::function& allocate) {
  const size_t count = groups.size();
  PG_CHECK_ARG(count > 0 && row_cuts.size() == count + 1 && strides.size() == count &&
                   place_starts.size() == count,
               "each segment has cuts, a group, a stride and a first place");
  PG_CHECK_ARG(row_cuts.front() == 0 && std::is_sorted(row_cuts.begin(), row_cuts.end()),
               "row_cuts must ascend from 0");
  RowGrouping op;
  for (const int64_t size : sizes) {
    PG_CHECK_ARG(size >= 0, "sizes must not be negative");
    op.first_owners.push_back(op.num_owners);
    op.num_owners += size;
  }
  for (size_t i = 0; i < count; ++i) {
    PG_CHECK_ARG(
        groups[i] >= 0 && groups[i] < static_cast<int64_t>(sizes.size()) && strides[i] >= 1,
        "a segment is of no group");
    op.segments.push_back({row_cuts[i], row_cuts[i + 1], strides[i], groups[i],
                           op.first_owners[groups[i]], place_starts[i]});
  }
  const int64_t num_rows = op.num_rows();
  op.keys = keys.int32_values("keys", num_rows);
  op.row_indptr = row_indptr.int32_values("row_indptr", num_rows + 1);
  op.owners = owners.int32_values("owners", num_rows);
  op.places = int64_values(places, "places", num_rows);
  op.indptr = indptr.int32_values("indptr", op.num_owners + 1);
  op.rows = rows.int32_values("rows", num_rows);
  PG_CHECK_ARG(edge_indptr.has_value() == edges.has_value(), "edges have offsets");
  if (edges) {
    op.edge_indptr = edge_indptr->int32_values("edge_indptr", op.num_owners + 1);
    op.edges = edges->int32_values("edges", num_edges);
  }
  const py::gil_scoped_release release;
  PG_ON_DEVICE(launch.device, group_rows_cpu(op),
               group_rows_cuda(op, num_edges, launch, with_gil(allocate)));
}

/// `out` of `left` [rows, columns], and `right` with as many rows if `sums_rows`, else a matrix.
bool bind_multiply_rows(const TensorRef& left, const TensorRef& right, const OptionalTensor& bias,
                        const TensorRef& out, bool is_transposed, bool sums_rows, bool adds,
                        const Launch& launch, [[maybe_unused]] const py::function& allocate) {
  const DType dtype = left.dtype("left"), out_dtype = out.dtype("out");
  PG_CHECK_ARG(dtype == DType::kFloat16 || dtype == DType::kBfloat16,
               "left must be float16 or bfloat16");
  PG_CHECK_ARG(out_dtype == dtype || (out_dtype == DType::kFloat32 && !bias),
               "out must be as the operands, or float32 without a bias");
  PG_CHECK_ARG(!is_transposed || !sums_rows, "sums of rows take no transposed matrix");
  RowProduct op{dtype, out_dtype};
  op.rows = left.size(0);
  op.left_columns = left.size(1);
  op.out_columns = out.size(1);
  op.is_transposed = is_transposed;
  op.sums_rows = sums_rows;
  op.adds = adds;
  const int64_t inner = sums_rows ? op.rows : op.left_columns;
  op.left = left.data;
  op.right = right.values("right", dtype, inner * op.out_columns);
  op.out = out.values("out", out_dtype, (sums_rows ? op.left_columns : op.rows) * op.out_columns);
  if (bias) op.bias = bias->values("bias", dtype, op.out_columns);
  bool is_done = false;
  if (op.rows > 0 && op.left_columns > 0 && op.out_columns > 0) {
    const py::gil_scoped_release release;
    PG_ON_DEVICE(launch.device, is_done = false,
                 is_done = multiply_rows_cuda(op, launch, with_gil(allocate)));
  }
  return is_done;
}

}  // namespace

void register_dense(py::module_& m) {
  py::enum_<KeyNumbering>(m, "KeyNumbering")
      .value("used", KeyNumbering::kUsed)
      .value("fixed", KeyNumbering::kFixed)
      .value("all", KeyNumbering::kAll);
  m.def("copy_rows", &bind_copy_rows, py::arg("operands"), py::kw_only(), py::arg("dtype"),
        py::arg("first_column"), py::arg("out"), py::arg("launch"), ReleaseGil());
  m.def("rank_edges", &bind_rank_edges, py::arg("matrix"), py::kw_only(), py::arg("counts"),
        py::arg("ranks"), py::arg("launch"), ReleaseGil());
  m.def("place_edges", &bind_place_edges, py::arg("matrix"), py::kw_only(), py::arg("indptr"),
        py::arg("ranks"), py::arg("rows"), py::arg("edge_ids"), py::arg("launch"), ReleaseGil());
  m.def("join_edges", &bind_join_edges, py::arg("relations"), py::kw_only(), py::arg("num_rows"),
        py::arg("row_starts"), py::arg("num_columns"), py::arg("column_starts"),
        py::arg("row_keys"), py::arg("row_segments"), py::arg("column_keys"), py::arg("indptr"),
        py::arg("indices"), py::arg("edge_ids"), py::arg("by_column"), py::arg("rows_of"),
        py::arg("positions"), py::arg("numbering"), py::arg("schedule"), py::arg("launch"),
        py::arg("allocate"));
  m.def("group_rows", &bind_group_rows, py::arg("keys"), py::arg("row_indptr"), py::kw_only(),
        py::arg("row_cuts"), py::arg("groups"), py::arg("strides"), py::arg("place_starts"),
        py::arg("sizes"), py::arg("owners"), py::arg("places"), py::arg("indptr"), py::arg("rows"),
        py::arg("edge_indptr"), py::arg("edges"), py::arg("num_edges"), py::arg("launch"),
        py::arg("allocate"));
  m.def("multiply_rows", &bind_multiply_rows, py::arg("left"), py::arg("right"), py::kw_only(),
        py::arg("bias"), py::arg("out"), py::arg("is_transposed"), py::arg("sums_rows"),
        py::arg("adds"), py::arg("launch"), py::arg("allocate"));
  m.def("activate", &bind_activate, py::kw_only(), py::arg("x"), py::arg("bias"), py::arg("relu"),
        py::arg("p"), py::arg("seed"), py::arg("bits"), py::arg("out"), py::arg("launch"),
        ReleaseGil());
  m.def("activate_backward", &bind_activate_backward, py::kw_only(), py::arg("grad"),
        py::arg("bits"), py::arg("p"), py::arg("out"), py::arg("partial"), py::arg("launch"),
        ReleaseGil());
  m.def("activation_parts", &activation_parts, py::arg("num_rows"));
}

}  // namespace peergraph
