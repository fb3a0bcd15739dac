// Python bindings of the store area.
#include "common/bind.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/on_device.h"
#include "memory/lease.h"
#include "memory/table_view.h"
#include "store/coo_to_csc.h"
#include "store/crc32c.h"
#include "store/csc_view.h"
#include "store/edge_buckets.h"
#include "store/exact_products.h"
#include "store/id_counts.h"
#include "store/keep_largest.h"
#include "store/large_products.h"
#include "store/neighbor_lists.h"
#include "store/peergraph.cuh"
#include "store/round_queries.h"

namespace py = pybind11;

namespace peergraph {
namespace {

using OptionalTensor = std::optional<TensorRef>;

/// Addresses of one part: indptr, indices, edge_begin. Parts are in regions, which are not tensors.
using PartAddresses = std::array<uintptr_t, 3>;

CscPart make_part(const PartAddresses& a) {
  return {reinterpret_cast<int64_t*>(a[0]), reinterpret_cast<void*>(a[1]),
          reinterpret_cast<int64_t*>(a[2])};
}

using LeasedIdMap = Leased<IdMapView>;
using LeasedCsc = Leased<CscView>;

LeasedCsc make_csc_view(int64_t replicated, int64_t sharded, int64_t rows, int64_t num_edges,
                        int index_bytes, int rank, const std::vector<PartAddresses>& replicas,
                        const std::vector<PartAddresses>& shards, const PartAddresses& host,
                        const Leased<TableView>& edge_ids, int64_t rows_on_disk,
                        const PartAddresses& disk, const LeasedIdMap& order, Leases leases) {
  PG_CHECK_ARG(replicas.size() <= kMaxShards && shards.size() <= kMaxShards,
               "a store spreads over at most " + std::to_string(kMaxShards) + " ranks");
  PG_CHECK_ARG(index_bytes == 4 || index_bytes == 8, "index_bytes must be 4 or 8");
  CscView view;
  view.map.replicated = replicated;
  view.map.sharded = sharded;
  view.map.host = rows - replicated - sharded - rows_on_disk;
  PG_CHECK_ARG(replicated >= 0 && sharded >= 0 && rows_on_disk >= 0 && view.map.host >= 0,
               "the rows of a tier must not be negative");
  PG_CHECK_ARG(replicated == 0 || (rank >= 0 && static_cast<size_t>(rank) < replicas.size()),
               "replicated rows need a replica of the rank");
  PG_CHECK_ARG(sharded == 0 || !shards.empty(), "sharded rows need shards");
  view.map.rows = rows;
  view.map.num_shards = static_cast<int32_t>(shards.empty() ? 1 : shards.size());
  view.index_bytes = index_bytes;
  view.rank = rank;
  view.num_replicas = static_cast<int32_t>(replicas.size());
  for (size_t i = 0; i < replicas.size(); ++i) view.replicas[i] = make_part(replicas[i]);
  for (size_t i = 0; i < shards.size(); ++i) view.shards[i] = make_part(shards[i]);
  view.host = make_part(host);
  view.disk = make_part(disk);
  view.num_edges = num_edges;
  view.edge_ids = edge_ids.unopened();
  view.order = order.unopened();
  add_leases(leases, edge_ids.leases());
  add_leases(leases, order.leases());
  return {view, std::move(leases)};
}

/// `destinations` maps from users' ids, `sources` maps to users' ids.
Leased<GraphView> make_graph_view(const LeasedCsc& lists, const LeasedIdMap& destinations,
                                  const LeasedIdMap& sources) {
  Leases leases = lists.leases();
  add_leases(leases, destinations.leases());
  add_leases(leases, sources.leases());
  return {{lists.unopened(), destinations.unopened(), sources.unopened()}, std::move(leases)};
}

ListChunk make_chunk(int64_t first, const TensorRef& indptr, const TensorRef& indices,
                     int64_t edge_begin, const OptionalTensor& edge_ids) {
  return {first,
          indptr.num_elements() - 1,
          indptr.int64_values("indptr", 1),
          indices.data,
          indices.id_bytes("indices"),
          indices.num_elements(),
          edge_begin,
          int64_values(edge_ids, "edge_ids", indices.num_elements())};
}

/// Raises ValueError unless the view has the chunk's destinations.
void check_range(int64_t first, int64_t count, int64_t rows) {
  PG_CHECK_ARG(first >= 0 && first <= rows && count <= rows - first,
               "destinations " + std::to_string(first) + " and the next " + std::to_string(count) +
                   " are out of range for " + std::to_string(rows));
}

void scatter_lists(const LeasedCsc& view, const ListChunk& chunk, const LeasedIdMap& destinations,
                   const LeasedIdMap& sources, const Launch& launch) {
  const Opened lists(view);
  check_range(chunk.first, chunk.count, lists->map.rows);
  const Opened to(destinations), from(sources);
  PG_ON_DEVICE(launch.device, scatter_lists_cpu(*lists, chunk, *to, *from, launch.num_threads),
               scatter_lists_cuda(*lists, chunk, *to, *from, launch.device, launch.stream));
}

void gather_lists(const LeasedCsc& view, const ListChunk& chunk, const LeasedIdMap& destinations,
                  const LeasedIdMap& sources, const Launch& launch) {
  const auto leased = make_graph_view(view, destinations, sources);
  const Opened graph(leased);
  check_range(chunk.first, chunk.count, graph->num_nodes());
  PG_ON_DEVICE(launch.device, gather_lists_cpu(*graph, chunk, launch.num_threads),
               gather_lists_cuda(*graph, chunk, launch.device, launch.stream));
}

void degrees(const LeasedCsc& view, int64_t first, const LeasedIdMap& destinations,
             const TensorRef& out, const Launch& launch) {
  const auto leased = make_graph_view(view, destinations, {});
  const Opened graph(leased);
  int64_t* into = out.int64_values("out");
  const int64_t count = out.num_elements();
  check_range(first, count, graph->num_nodes());
  PG_ON_DEVICE(launch.device, degrees_cpu(*graph, first, count, into, launch.num_threads),
               degrees_cuda(*graph, first, count, into, launch.device, launch.stream));
}

bool sort_coo(const TensorRef& source, const TensorRef& destination, int64_t num_sources,
              int64_t num_destinations, const TensorRef& indptr, const TensorRef& indices,
              const TensorRef& perm) {
  const int id_bytes = source.id_bytes("source");
  const int64_t num_edges = source.num_elements();
  PG_CHECK_ARG(destination.num_elements() == num_edges,
               "source and destination must have the same length");
  PG_CHECK_ARG(num_sources >= 0 && num_destinations >= 0 && num_destinations < INT64_MAX,
               "numbers of nodes are out of range");
  return coo_to_csc(
      source.data, destination.ids("destination", id_bytes, num_edges), id_bytes, num_edges,
      num_sources, num_destinations, indptr.int64_values("indptr", num_destinations + 1),
      indices.ids("indices", id_bytes, num_edges), perm.int64_values("perm", num_edges));
}

/// Records, the first one of the run, how many it has, and the id of the first edge.
using RunTensors = std::tuple<TensorRef, int64_t, int64_t, int64_t>;

std::pair<int64_t, bool> split_edges(const TensorRef& source, const TensorRef& destination,
                                     int64_t num_sources, int64_t first_destination,
                                     int64_t num_destinations, int shift, int source_bytes,
                                     const TensorRef& records, const TensorRef& counts,
                                     int num_threads) {
  const PartitionedEdges result =
      partition_edges(source, destination, num_sources, first_destination, num_destinations, shift,
                      source_bytes, records, counts, num_threads);
  return {result.num_taken, result.is_sorted};
}

std::pair<bool, bool> count_values(const TensorRef& ids, int64_t limit,
                                   const OptionalTensor& counts, bool is_shared, int num_threads) {
  const CountedIds result = count_ids(ids, limit, counts, is_shared, num_threads);
  return {result.in_range, result.rises};
}

void sort_edge_runs(const std::vector<RunTensors>& runs, const TensorRef& degrees,
                    const TensorRef& indices, const OptionalTensor& edge_ids) {
  std::vector<EdgeRun> edge_runs;
  for (const auto& [records, begin, count, first_edge] : runs)
    edge_runs.push_back({records, begin, count, first_edge});
  sort_bucket(edge_runs, degrees, indices, edge_ids);
}

/// Rows of a table that queries are multiplied with. `codec` decodes them; `scales` has the scales
/// of each row, where they are apart.
class MultipliedTable {
 public:
  MultipliedTable(const Leased<TableView>& table, const std::optional<Leased<TableView>>& scales)
      : rows_(table) {
    if (scales) scales_.emplace(*scales);
  }

  ExactProducts work(DType dtype, const std::optional<RowCodec>& codec,
                     const TensorRef& queries) const {
    ExactProducts work;
    work.table = *rows_;
    work.dtype = dtype;
    work.columns = queries.size(1);
    int64_t row_bytes = work.columns * bytes_of(dtype);
    if (codec) {
      work.is_encoded = true;
      work.codec = scales_ ? codec->apart() : *codec;
      PG_CHECK_ARG(codec->columns == work.columns, "queries must have the codec's columns");
      row_bytes = scales_ ? work.columns * codec->stored_bytes() : codec->used_bytes();
    }
    if (scales_) {
      work.scales = **scales_;
      work.has_scales_apart = true;
      PG_CHECK_ARG(work.is_encoded && work.scales.map.rows == work.table.map.rows &&
                       work.scales.row_bytes == 4 * work.codec.num_scales(),
                   "scales must have the codec's scales of each row of the table");
    }
    PG_CHECK_ARG(work.table.row_bytes >= row_bytes, "queries must have the columns of the table");
    work.num_queries = queries.size(0);
    work.queries = static_cast<const double*>(queries.values("queries", DType::kFloat64, 0));
    return work;
  }

 private:
  Opened<TableView> rows_;
  std::optional<Opened<TableView>> scales_;
};

void multiply_exactly(const Leased<TableView>& table, DType dtype,
                      const std::optional<RowCodec>& codec,
                      const std::optional<Leased<TableView>>& scales, const TensorRef& queries,
                      const TensorRef& ids, const TensorRef& products, const Launch& launch) {
  const MultipliedTable opened(table, scales);
  ExactProducts work = opened.work(dtype, codec, queries);
  work.rows_of_query = ids.size(1);
  const int64_t count = work.num_queries * work.rows_of_query;
  work.ids = ids.int64_values("ids", count);
  work.products = static_cast<double*>(products.values("products", DType::kFloat64, count));
  PG_ON_DEVICE(launch.device, exact_products_cpu(work, launch.num_threads),
               exact_products_cuda(work, launch.device, launch.stream));
}

/// `most`: not below any count.
void rank_exactly(const Leased<TableView>& table, DType dtype, const std::optional<RowCodec>& codec,
                  const std::optional<Leased<TableView>>& scales, const TensorRef& queries,
                  const TensorRef& places, const TensorRef& counts, int64_t most,
                  const OptionalTensor& user_ids, const TensorRef& products, const TensorRef& ids,
                  const Launch& launch) {
  const MultipliedTable opened(table, scales);
  RankedProducts work;
  work.exact = opened.work(dtype, codec, queries);
  const int64_t count = work.exact.num_queries;
  work.capacity = places.size(1);
  PG_CHECK_ARG(most >= 0 && most <= work.capacity && most <= kMostRanked,
               "too many places of a query");
  work.exact.rows_of_query = most;
  work.places = places.int64_values("places", count * work.capacity);
  work.counts = counts.int32_values("counts", count);
  if (user_ids) {
    work.id_bytes = user_ids->id_bytes("user_ids");
    work.user_ids = user_ids->ids("user_ids", work.id_bytes, work.exact.table.map.rows);
  }
  work.k = products.size(1);
  work.products =
      static_cast<double*>(products.values("products", DType::kFloat64, count * work.k));
  work.ids = ids.int64_values("ids", count * work.k);
  PG_ON_DEVICE(launch.device, rank_products_cpu(work, launch.num_threads),
               rank_products_cuda(work, launch.device, launch.stream));
}

void round_product_queries(ProductKind kind, const TensorRef& queries, double relative,
                           const TensorRef& values, const TensorRef& scales, const TensorRef& norms,
                           const TensorRef& errors, const TensorRef& rounded_up,
                           const Launch& launch) {
  RoundQueries work;
  work.kind = kind;
  const int64_t count = work.num_queries = queries.size(0);
  work.columns = queries.size(1);
  work.queries = static_cast<const double*>(queries.values("queries", DType::kFloat64, 0));
  work.relative = relative;
  work.values = values.bytes("values", count * work.columns * (kind == ProductKind::kInt8 ? 1 : 2));
  work.scales = static_cast<float*>(scales.values("scales", DType::kFloat32, count));
  work.norms = static_cast<double*>(norms.values("norms", DType::kFloat64, count));
  work.errors = static_cast<double*>(errors.values("errors", DType::kFloat64, count));
  work.rounded_up = static_cast<float*>(rounded_up.values("rounded_up", DType::kFloat32, count));
  PG_ON_DEVICE(launch.device, round_queries_cpu(work, launch.num_threads),
               round_queries_cuda(work, launch.device, launch.stream));
}

/// The step between blocks, whether to skip those of larger steps, whether all products are
/// written, the rank of the product that bounds those of later stages, and whether there are none.
using ProductStage = std::tuple<int64_t, bool, bool, int64_t, bool>;

/// Finds the large products of stages, one after the other, and keeps the largest after each.
/// `rows` are addresses, as rows of tables are in regions. `place`: of the first row, and from one
/// row to the next. `failed` has a row for each stage. `above`: bounds of the products of the first
/// stage.
void find_large_products(ProductKind kind, uintptr_t rows, int64_t num_rows, int64_t row_bytes,
                         uintptr_t scales, int64_t scale_bytes,
                         const std::vector<ProductStage>& stages,
                         const std::pair<int64_t, int64_t>& place, const TensorRef& queries,
                         const TensorRef& query_scales, const TensorRef& errors,
                         const TensorRef& exact_errors, const TensorRef& norms, double underflow,
                         const TensorRef& excluded, int64_t num_places, const TensorRef& above,
                         const TensorRef& bounds, bool guesses, const TensorRef& products,
                         const TensorRef& places, const TensorRef& counts, const TensorRef& kept,
                         const TensorRef& largest_norm, const TensorRef& failed,
                         const TensorRef& state, const Launch& launch) {
  LargeProducts work;
  work.kind = kind;
  PG_CHECK_ARG(num_rows >= 0 && num_rows < (int64_t{1} << 31), "too many rows at once");
  work.num_rows = num_rows;
  work.rows = pointer<char>(rows);
  work.row_bytes = row_bytes;
  const int64_t count = work.num_queries = queries.size(0);
  work.value_bytes = queries.size(1) * queries.item_bytes;
  PG_CHECK_ARG(work.value_bytes == 64 || work.value_bytes == 128 || work.value_bytes == 256 ||
                   work.value_bytes == 512,
               "rows must have 64, 128, 256 or 512 bytes");
  PG_CHECK_ARG(rows % 16 == 0 && row_bytes % 16 == 0 && row_bytes >= work.value_bytes,
               "rows must begin at multiples of 16 bytes");
  PG_CHECK_ARG(kind != ProductKind::kInt8 || (scales % 4 == 0 && scale_bytes % 4 == 0),
               "scales must begin at multiples of 4 bytes");
  work.scales = pointer<char>(scales);
  work.scale_bytes = scale_bytes;
  std::tie(work.first_place, work.place_step) = place;
  work.queries = queries.bytes("queries", 0);
  PG_CHECK_ARG(reinterpret_cast<uintptr_t>(work.queries) % 16 == 0,
               "queries must begin at a multiple of 16 bytes");
  const auto floats = [](const TensorRef& tensor, const char* name, int64_t least) {
    return static_cast<float*>(tensor.values(name, DType::kFloat32, least));
  };
  const auto doubles = [](const TensorRef& tensor, const char* name, int64_t least) {
    return static_cast<const double*>(tensor.values(name, DType::kFloat64, least));
  };
  work.query_scales = floats(query_scales, "query_scales", count);
  work.errors = floats(errors, "errors", count);
  work.capacity = products.size(1);
  PG_CHECK_ARG(work.capacity < (int64_t{1} << 31), "products must have fewer columns");
  work.products = floats(products, "products", count * work.capacity);
  work.places = places.int64_values("places", count * work.capacity);
  work.counts = counts.int32_values("counts", count);
  work.largest_norm = floats(largest_norm, "largest_norm", 1);
  work.bounds = floats(above, "above", count);

  KeepLargest keep;
  keep.guesses = guesses;
  keep.num_queries = count;
  keep.capacity = work.capacity;
  keep.products = work.products;
  keep.places = work.places;
  keep.counts = work.counts;
  keep.kept = kept.int32_values("kept", count);
  keep.errors = doubles(exact_errors, "exact_errors", count);
  keep.underflow = underflow;
  keep.norms = doubles(norms, "norms", count);
  keep.largest_norm = work.largest_norm;
  keep.num_excluded = excluded.num_elements();
  keep.num_places = num_places;
  keep.excluded = excluded.int64_values("excluded");
  keep.bounds = floats(bounds, "bounds", count);
  keep.state = state.int32_values("state", 2);
  keep.failed = failed.byte_values("failed", static_cast<int64_t>(stages.size()) * count);

  for (const auto& [step, skips_earlier, writes_all, rank, is_last] : stages) {
    PG_CHECK_ARG(step > 0, "the step between blocks must be positive");
    PG_CHECK_ARG(rank > 0 && rank < (int64_t{1} << 31), "the rank must be positive");
    work.block_step = step;
    work.skips_earlier = skips_earlier;
    work.writes_all = writes_all;
    PG_CHECK_ARG(!writes_all || num_stage_rows(work) <= work.capacity,
                 "products must have a column for each row of the stage");
    PG_ON_DEVICE(launch.device, large_products_cpu(work, launch.num_threads),
                 large_products_cuda(work, launch.device, launch.stream));
    keep.rank = rank;
    keep.is_last = is_last;
    PG_ON_DEVICE(launch.device, keep_largest_cpu(keep, launch.num_threads),
                 keep_largest_cuda(keep, launch.device, launch.stream));
    keep.failed += count;
    work.bounds = keep.bounds;
  }
}

}  // namespace

void register_store(py::module_& m) {
  py::class_<LeasedCsc>(m, "CscView")
      .def(py::init<>())
      .def(py::init(&make_csc_view), py::kw_only(), py::arg("replicated"), py::arg("sharded"),
           py::arg("rows"), py::arg("num_edges"), py::arg("index_bytes"), py::arg("rank"),
           py::arg("replicas"), py::arg("shards"), py::arg("host"),
           py::arg("edge_ids") = Leased<TableView>{}, py::arg("rows_on_disk") = 0,
           py::arg("disk") = PartAddresses{}, py::arg("order") = LeasedIdMap{},
           py::arg("leases") = Leases{})
      .def_property_readonly("rows", [](const LeasedCsc& v) { return v.unopened().map.rows; })
      .def_property_readonly("num_edges", [](const LeasedCsc& v) { return v.unopened().num_edges; })
      .def_property_readonly("index_bytes",
                             [](const LeasedCsc& v) { return v.unopened().index_bytes; });
  py::class_<Leased<GraphView>>(m, "GraphView")
      .def(py::init(&make_graph_view), py::kw_only(), py::arg("lists"), py::arg("destinations"),
           py::arg("sources"))
      .def("to_bytes", [](const Leased<GraphView>& leased) {
        const Opened view(leased);
        return py::bytes(reinterpret_cast<const char*>(&*view), sizeof(GraphView));
      });
  py::class_<ListChunk>(m, "ListChunk")
      .def(py::init(&make_chunk), py::kw_only(), py::arg("first"), py::arg("indptr"),
           py::arg("indices"), py::arg("edge_begin") = 0, py::arg("edge_ids") = py::none());
  m.def("scatter_lists", &scatter_lists, ReleaseGil(), py::arg("view"), py::arg("chunk"),
        py::arg("destinations"), py::arg("sources"), py::arg("launch"));
  m.def("gather_lists", &gather_lists, ReleaseGil(), py::arg("view"), py::arg("chunk"),
        py::arg("destinations"), py::arg("sources"), py::arg("launch"));
  m.def("degrees", &degrees, ReleaseGil(), py::arg("view"), py::arg("first"),
        py::arg("destinations"), py::arg("out"), py::arg("launch"));
  m.def("coo_to_csc", &sort_coo, ReleaseGil(), py::arg("source"), py::arg("destination"),
        py::arg("num_sources"), py::arg("num_destinations"), py::arg("indptr"), py::arg("indices"),
        py::arg("perm"));
  m.def("partition_edges", &split_edges, ReleaseGil(), py::kw_only(), py::arg("source"),
        py::arg("destination"), py::arg("num_sources"), py::arg("first_destination"),
        py::arg("num_destinations"), py::arg("shift"), py::arg("source_bytes"), py::arg("records"),
        py::arg("counts"), py::arg("num_threads"));
  py::enum_<ProductKind>(m, "ProductKind")
      .value("int8", ProductKind::kInt8)
      .value("bfloat16", ProductKind::kBfloat16)
      .value("float16", ProductKind::kFloat16);
  m.def("exact_products", &multiply_exactly, ReleaseGil(), py::kw_only(), py::arg("table"),
        py::arg("dtype"), py::arg("codec"), py::arg("scales"), py::arg("queries"), py::arg("ids"),
        py::arg("products"), py::arg("launch"));
  m.def("round_queries", &round_product_queries, ReleaseGil(), py::kw_only(), py::arg("kind"),
        py::arg("queries"), py::arg("relative"), py::arg("values"), py::arg("scales"),
        py::arg("norms"), py::arg("errors"), py::arg("rounded_up"), py::arg("launch"));
  m.def("rank_products", &rank_exactly, ReleaseGil(), py::kw_only(), py::arg("table"),
        py::arg("dtype"), py::arg("codec"), py::arg("scales"), py::arg("queries"),
        py::arg("places"), py::arg("counts"), py::arg("most"), py::arg("user_ids"),
        py::arg("products"), py::arg("ids"), py::arg("launch"));
  m.attr("most_ranked") = kMostRanked;
  m.def("find_large_products", &find_large_products, ReleaseGil(), py::kw_only(), py::arg("kind"),
        py::arg("rows"), py::arg("num_rows"), py::arg("row_bytes"), py::arg("scales"),
        py::arg("scale_bytes"), py::arg("stages"), py::arg("place"), py::arg("queries"),
        py::arg("query_scales"), py::arg("errors"), py::arg("exact_errors"), py::arg("norms"),
        py::arg("underflow"), py::arg("excluded"), py::arg("num_places"), py::arg("above"),
        py::arg("bounds"), py::arg("guesses"), py::arg("products"), py::arg("places"),
        py::arg("counts"), py::arg("kept"), py::arg("largest_norm"), py::arg("failed"),
        py::arg("state"), py::arg("launch"));
  m.def("count_ids", &count_values, ReleaseGil(), py::arg("ids"), py::kw_only(), py::arg("limit"),
        py::arg("counts"), py::arg("is_shared"), py::arg("num_threads"));
  m.def("sort_bucket", &sort_edge_runs, ReleaseGil(), py::kw_only(), py::arg("runs"),
        py::arg("degrees"), py::arg("indices"), py::arg("edge_ids"));
  m.def(
      "crc32c",
      [](const TensorRef& values, uint32_t previous) {
        return crc32c(values.data, values.num_bytes(), previous);
      },
      ReleaseGil(), py::arg("values"), py::arg("previous") = 0);
}

}  // namespace peergraph
