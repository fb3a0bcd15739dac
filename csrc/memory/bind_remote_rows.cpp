// Python bindings of the search for rows of other machines.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>

#include "common/bind.h"
#include "common/check.h"
#include "common/on_device.h"
#include "memory/lease.h"
#include "memory/remote_rows.h"

namespace py = pybind11;

namespace peergraph {
namespace {

MachineSplit make_split(int64_t rows, int64_t hot, int64_t machines, int64_t index) {
  PG_CHECK_ARG(hot >= 0 && hot <= rows, "hot must be of 0 .. rows");
  PG_CHECK_ARG(index >= 0 && index < machines, "index must be of 0 .. machines - 1");
  return {rows, hot, machines, index};
}

RowRoutes make_routes(const TensorRef& first_keys, int64_t count) {
  PG_CHECK_ARG(first_keys.num_elements() > 0, "first_keys must not be empty");
  PG_CHECK_ARG(count >= 0, "count must not be negative");
  return {first_keys.int64_values("first_keys"), first_keys.num_elements(), count};
}

/// A query without an order.
RemoteRowQuery make_query(const IdList& ids, const MachineSplit& split, const RowRoutes& routes) {
  PG_CHECK_ARG(routes.period % split.machines == 0, "routes must be those of the split's machines");
  return {ids, {}, false, split, routes};
}

int64_t scratch_bytes(const IdList& ids, const MachineSplit& split, const RowRoutes& routes,
                      int device) {
  const RemoteRowQuery query = make_query(ids, split, routes);
  int64_t num_bytes = 0;
  PG_ON_DEVICE(device, static_cast<void>(query), num_bytes = remote_rows_scratch(query, device));
  return num_bytes;
}

/// `found` is int64 [4, ids]: the rows of RemoteRows.
std::pair<int64_t, int64_t> find_remote_rows(const IdList& ids,
                                             const std::optional<Leased<TableView>>& order,
                                             const MachineSplit& split, const RowRoutes& routes,
                                             const TensorRef& found, const Launch& launch,
                                             const std::optional<TensorRef>& host_keys,
                                             const std::optional<TensorRef>& scratch) {
  RemoteRowQuery query = make_query(ids, split, routes);
  std::optional<Opened<TableView>> opened;
  if (order) {
    query.order = *opened.emplace(*order);
    query.is_ordered = true;
    PG_CHECK_ARG(query.order.map.rows == split.rows &&
                     (query.order.row_bytes == 4 || query.order.row_bytes == 8),
                 "order must have one int32 or int64 for each row");
  }
  int64_t* const local = found.int64_values("found", checked_product(4, ids.count));
  const RemoteRows out{local, local + ids.count, local + 2 * ids.count, local + 3 * ids.count};
  PG_CHECK_ARG(launch.device < 0 || (host_keys && scratch), "a GPU needs host_keys and scratch");
  RemoteRowCounts counts;
  PG_ON_DEVICE(launch.device, counts = find_remote_rows_cpu(query, out, launch.num_threads), {
    const int64_t least = remote_rows_scratch(query, launch.device);
    counts = find_remote_rows_cuda(query, out, host_keys->int64_values("host_keys", ids.count),
                                   scratch->bytes("scratch", least), launch);
  });
  return {counts.ids, counts.rows};
}

}  // namespace

void register_remote_rows(py::module_& m) {
  m.attr("row_number_bits") = kRowNumberBits;
  py::class_<MachineSplit>(m, "MachineSplit")
      .def(py::init(&make_split), py::kw_only(), py::arg("rows"), py::arg("hot"),
           py::arg("machines"), py::arg("index"));
  py::class_<RowRoutes>(m, "RowRoutes")
      .def(py::init(&make_routes), py::arg("first_keys"), py::arg("count"));
  m.def("remote_rows_scratch", &scratch_bytes, py::arg("ids"), py::arg("split"), py::arg("routes"),
        py::arg("device"));
  m.def("find_remote_rows", &find_remote_rows, py::arg("ids"), py::arg("order"), py::arg("split"),
        py::arg("routes"), py::arg("found"), py::arg("launch"), py::arg("host_keys") = py::none(),
        py::arg("scratch") = py::none(), ReleaseGil());
}

}  // namespace peergraph
