// Python face of the memory area.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "common/check.h"
#include "memory/table_view.h"

namespace py = pybind11;

namespace peergraph {
namespace {

TableView make_table_view(int64_t replicated, int64_t sharded, int64_t rows, int64_t row_bytes,
                          int rank, const std::vector<uintptr_t>& replicas,
                          const std::vector<uintptr_t>& shards, uintptr_t host, uintptr_t order,
                          int order_bytes) {
  PG_CHECK_ARG(replicas.size() <= kMaxShards && shards.size() <= kMaxShards,
               "a table spreads over at most " + std::to_string(kMaxShards) + " ranks");
  TableView view;
  view.map.replicated = replicated;
  view.map.sharded = sharded;
  view.map.rows = rows;
  view.map.num_shards = static_cast<int32_t>(shards.empty() ? 1 : shards.size());
  view.row_bytes = row_bytes;
  view.rank = rank;
  view.num_replicas = static_cast<int32_t>(replicas.size());
  for (size_t i = 0; i < replicas.size(); ++i)
    view.replicas[i] = reinterpret_cast<char*>(replicas[i]);
  for (size_t i = 0; i < shards.size(); ++i) view.shards[i] = reinterpret_cast<char*>(shards[i]);
  view.host = reinterpret_cast<char*>(host);
  view.order = reinterpret_cast<const void*>(order);
  view.order_bytes = order_bytes;
  return view;
}

}  // namespace

void register_memory(py::module_& m) {
  m.attr("max_shards") = kMaxShards;
  py::class_<TableView>(m, "TableView")
      .def(py::init<>())
      .def(py::init(&make_table_view), py::kw_only(), py::arg("replicated"), py::arg("sharded"),
           py::arg("rows"), py::arg("row_bytes"), py::arg("rank"), py::arg("replicas"),
           py::arg("shards"), py::arg("host"), py::arg("order") = 0, py::arg("order_bytes") = 0)
      .def_property_readonly("rows", [](const TableView& v) { return v.map.rows; })
      .def_readonly("row_bytes", &TableView::row_bytes);
}

}  // namespace peergraph
