// Python face of the store area.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <vector>

#include "common/check.h"
#include "store/csc_view.h"

namespace py = pybind11;

namespace peergraph {
namespace {

/// Addresses of one part: indptr, indices, edge_begin.
using PartAddresses = std::array<uintptr_t, 3>;

CscPart make_part(const PartAddresses& a) {
  return {reinterpret_cast<int64_t*>(a[0]), reinterpret_cast<void*>(a[1]),
          reinterpret_cast<int64_t*>(a[2])};
}

CscView make_csc_view(int64_t replicated, int64_t sharded, int64_t rows, int64_t num_edges,
                      int index_bytes, int rank, const std::vector<PartAddresses>& replicas,
                      const std::vector<PartAddresses>& shards, const PartAddresses& host,
                      const TableView& edge_ids) {
  PG_CHECK_ARG(replicas.size() <= kMaxShards && shards.size() <= kMaxShards,
               "a store spreads over at most " + std::to_string(kMaxShards) + " ranks");
  PG_CHECK_ARG(index_bytes == 4 || index_bytes == 8, "index_bytes must be 4 or 8");
  CscView view;
  view.map.replicated = replicated;
  view.map.sharded = sharded;
  view.map.rows = rows;
  view.map.num_shards = static_cast<int32_t>(shards.empty() ? 1 : shards.size());
  view.index_bytes = index_bytes;
  view.rank = rank;
  view.num_replicas = static_cast<int32_t>(replicas.size());
  for (size_t i = 0; i < replicas.size(); ++i) view.replicas[i] = make_part(replicas[i]);
  for (size_t i = 0; i < shards.size(); ++i) view.shards[i] = make_part(shards[i]);
  view.host = make_part(host);
  view.num_edges = num_edges;
  view.edge_ids = edge_ids;
  return view;
}

}  // namespace

void register_store(py::module_& m) {
  py::class_<CscView>(m, "CscView")
      .def(py::init<>())
      .def(py::init(&make_csc_view), py::kw_only(), py::arg("replicated"), py::arg("sharded"),
           py::arg("rows"), py::arg("num_edges"), py::arg("index_bytes"), py::arg("rank"),
           py::arg("replicas"), py::arg("shards"), py::arg("host"),
           py::arg("edge_ids") = TableView{})
      .def_property_readonly("rows", [](const CscView& v) { return v.map.rows; })
      .def_readonly("num_edges", &CscView::num_edges)
      .def_readonly("index_bytes", &CscView::index_bytes);
}

}  // namespace peergraph
