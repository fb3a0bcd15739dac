// Bindings of gathers of several tables.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "common/bind.h"
#include "common/check.h"
#include "memory/bind_torch_tensors.h"
#include "memory/gather_tables.h"
#include "memory/row_lists.h"

namespace py = pybind11;

namespace peergraph {
namespace {

TorchFunctions make_torch_functions(uintptr_t empty, uintptr_t data_pointer,
                                    uintptr_t delete_tensor, uintptr_t set_stream,
                                    uintptr_t reset_stream, int32_t device_type, int32_t uint8,
                                    int32_t int32, int32_t int64) {
  PG_CHECK_ARG(empty && data_pointer && delete_tensor, "a function of torch is missing");
  PG_CHECK_ARG((set_stream == 0) == (reset_stream == 0), "streams need both functions");
  TorchFunctions torch;
  torch.empty = reinterpret_cast<TorchFunctions::Empty>(empty);
  torch.data_pointer = reinterpret_cast<TorchFunctions::DataPointer>(data_pointer);
  torch.delete_tensor = reinterpret_cast<TorchFunctions::Delete>(delete_tensor);
  torch.set_stream = reinterpret_cast<TorchFunctions::SetStream>(set_stream);
  torch.reset_stream = reinterpret_cast<TorchFunctions::Delete>(reset_stream);
  torch.device_type = device_type;
  torch.uint8 = uint8;
  torch.int32 = int32;
  torch.int64 = int64;
  return torch;
}

std::shared_ptr<StoredTable> make_stored_table(const Leased<TableView>& table,
                                               const std::optional<RowCodec>& codec,
                                               const std::optional<Leased<TableView>>& scales,
                                               int32_t dtype, int64_t item_bytes,
                                               const std::vector<int64_t>& row_shape) {
  int64_t row_bytes = item_bytes;
  for (const int64_t size : row_shape) row_bytes = checked_product(row_bytes, size);
  PG_CHECK_ARG(row_bytes == (codec ? checked_product(codec->columns, item_bytes)
                                   : table.unopened().row_bytes),
               "rows of a result must have the shape of the table's");
  return std::make_shared<StoredTable>(
      StoredTable{table, codec, scales, dtype, row_bytes, row_shape});
}

/// The memory for the sizes of lists.
int64_t* pinned_sizes(const std::optional<TensorRef>& sizes, int64_t num_lists,
                      const Launch& launch) {
  const int64_t words = list_size_words(num_lists);
  PG_CHECK_ARG(launch.device < 0 || words == 0 || sizes, "lists on a GPU need sizes");
  return int64_values(sizes, "sizes", words);
}

/// A table, the elements of the lists in its rows, and the ids.
using ReadTuple = std::tuple<const StoredTable*, std::optional<const StoredTable*>, const IdList*>;

py::list gather(const std::vector<ReadTuple>& tuples, const TorchFunctions& torch,
                const AdoptTensors& adopt, const std::optional<TensorRef>& sizes,
                const Launch& launch) {
  std::vector<TableRead> reads;
  int64_t num_lists = 0;
  for (const auto& [table, elements, ids] : tuples) {
    PG_CHECK_ARG(table != nullptr && ids != nullptr, "a read needs a table and ids");
    PG_CHECK_ARG(ids->out_index == nullptr, "out_index is for a result that the caller allocates");
    if (elements) ++num_lists;
    reads.push_back({table, elements.value_or(nullptr), *ids});
  }
  int64_t* const pinned = pinned_sizes(sizes, num_lists, launch);
  std::vector<TorchTensor> rows;
  {
    const py::gil_scoped_release without_lock;
    rows = gather_tables(reads, torch, pinned, launch);
  }
  py::list handles;
  for (TorchTensor& tensor : rows) append_handle(handles, tensor);
  return adopt(handles);
}

/// Bounds, the memory of the ends, and the number of stored elements.
using ListsTuple = std::tuple<TensorRef, TensorRef, int64_t>;

/// Returns the address of the places of all elements, one table after the other, and the number of
/// elements of each table.
std::tuple<uintptr_t, std::vector<int64_t>> list_places(const std::vector<ListsTuple>& tuples,
                                                        const std::optional<TensorRef>& sizes,
                                                        const Launch& launch,
                                                        const py::function& allocate) {
  int64_t* const pinned = pinned_sizes(sizes, static_cast<int64_t>(tuples.size()), launch);
  ListPlaces places(with_gil(allocate), pinned, launch);
  for (const auto& [bounds, ends, num_stored] : tuples) {
    RowLists of;
    of.bounds = bounds.int64_values("bounds");
    of.rows = bounds.size(0);
    of.columns = bounds.size(1) - 1;
    PG_CHECK_ARG(bounds.num_dims == 2 && of.columns >= 0, "bounds must be [rows, columns + 1]");
    of.ends = ends.int64_values("ends", of.count() + 1);
    of.num_stored = num_stored;
    places.add(of);
  }
  const py::gil_scoped_release without_lock;
  places.write_ends();
  places.write_places();
  std::vector<int64_t> counts;
  for (const RowLists& of : places.lists()) counts.push_back(of.num_elements);
  return {counts.empty() ? 0 : reinterpret_cast<uintptr_t>(places.lists().front().places), counts};
}

}  // namespace

void register_gather_tables(py::module_& m) {
  py::class_<TorchFunctions>(m, "TorchFunctions")
      .def(py::init(&make_torch_functions), py::kw_only(), py::arg("empty"),
           py::arg("data_pointer"), py::arg("delete_tensor"), py::arg("set_stream"),
           py::arg("reset_stream"), py::arg("device_type"), py::arg("uint8"), py::arg("int32"),
           py::arg("int64"));
  py::class_<StoredTable, std::shared_ptr<StoredTable>>(m, "StoredTable")
      .def(py::init(&make_stored_table), py::kw_only(), py::arg("table"), py::arg("codec"),
           py::arg("scales"), py::arg("dtype"), py::arg("item_bytes"), py::arg("row_shape"));
  m.def("gather_tables", &gather, py::arg("reads"), py::arg("torch"), py::arg("adopt"),
        py::arg("sizes"), py::arg("launch"));
  m.def("list_places", &list_places, py::arg("lists"), py::arg("sizes"), py::arg("launch"),
        py::arg("allocate"));
}

}  // namespace peergraph
