// Python bindings of the memory area.
#include "common/bind.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "common/check.h"
#include "common/on_device.h"
#include "memory/bind_content.h"
#include "memory/capture_mode.h"
#include "memory/cuda_region.h"
#include "memory/dlpack.h"
#include "memory/error_slot.h"
#include "memory/flags.h"
#include "memory/gather.h"
#include "memory/host_region.h"
#include "memory/huge_pages.h"
#include "memory/lease.h"
#include "memory/row_addresses.h"
#include "memory/row_codec.h"
#include "memory/staging.h"
#include "memory/stored_rows.h"
#include "memory/table_view.h"

namespace py = pybind11;

namespace peergraph {
namespace {

using LeasedTable = Leased<TableView>;
using LeasedIdMap = Leased<IdMapView>;

using OptionalTensor = std::optional<TensorRef>;

/// Without ids, the identity.
IdMapView id_map(const OptionalTensor& ids) {
  return {pointer<const void>(ids), ids ? ids->id_bytes("ids") : 0};
}

/// The rows of a view on the host: all that are on no other tier.
int64_t host_rows(int64_t rows, int64_t replicated, int64_t sharded, int64_t rows_on_disk) {
  for (const int64_t count : {rows, replicated, sharded, rows_on_disk})
    PG_CHECK_ARG(count >= 0 && count <= rows, "the rows of a tier must be 0 .. all rows");
  // None of them is larger than `rows`, so that the differences fit.
  const int64_t left = rows - replicated - sharded;
  PG_CHECK_ARG(left >= rows_on_disk, "the tiers have more rows than there are");
  return left - rows_on_disk;
}

/// Takes addresses, since a region may be mapped or on another GPU, and is not a tensor.
LeasedTable make_table_view(int64_t replicated, int64_t sharded, int64_t rows, int64_t row_bytes,
                            int rank, const std::vector<uintptr_t>& replicas,
                            const std::vector<uintptr_t>& shards, uintptr_t host,
                            const OptionalTensor& order, int64_t rows_on_disk, uintptr_t disk,
                            int64_t block_rows, const Leases& leases) {
  PG_CHECK_ARG(block_rows == 0 || checked_product(block_rows, shards.size()) >= sharded,
               "the shards' blocks must hold all sharded rows");
  PG_CHECK_ARG(replicas.size() <= kMaxShards && shards.size() <= kMaxShards,
               "a table is split over at most " + std::to_string(kMaxShards) + " ranks");
  checked_product(rows, row_bytes);
  PG_CHECK_ARG(replicated == 0 || (rank >= 0 && static_cast<size_t>(rank) < replicas.size()),
               "replicated rows need a replica of the rank");
  PG_CHECK_ARG(sharded == 0 || !shards.empty(), "sharded rows need shards");
  PG_CHECK_ARG(!order || order->num_elements() >= rows, "order must have an id for each row");
  TableView view;
  view.map.replicated = replicated;
  view.map.sharded = sharded;
  view.map.host = host_rows(rows, replicated, sharded, rows_on_disk);
  view.map.rows = rows;
  view.map.num_shards = static_cast<int32_t>(shards.empty() ? 1 : shards.size());
  view.map.block_rows = block_rows;
  view.row_bytes = row_bytes;
  view.rank = rank;
  view.num_replicas = static_cast<int32_t>(replicas.size());
  for (size_t i = 0; i < replicas.size(); ++i)
    view.replicas[i] = reinterpret_cast<char*>(replicas[i]);
  for (size_t i = 0; i < shards.size(); ++i) view.shards[i] = reinterpret_cast<char*>(shards[i]);
  view.host = reinterpret_cast<char*>(host);
  view.disk = reinterpret_cast<char*>(disk);
  view.order = id_map(order);
  return {view, leases};
}

LeasedIdMap make_id_map(const OptionalTensor& ids, const Leases& leases) {
  return {id_map(ids), leases};
}

/// The ids of a tensor, or `count` consecutive ones from `first` on.
IdList make_id_list(const OptionalTensor& ids, int64_t first, int64_t count,
                    const OptionalTensor& out_index, const OptionalTensor& host_begin, bool padded,
                    int64_t max_blocks) {
  PG_CHECK_ARG(count >= 0, "count must not be negative");
  PG_CHECK_ARG(max_blocks >= 0, "max_blocks must not be negative");
  PG_CHECK_ARG(!host_begin || out_index, "host_begin needs out_index");
  PG_CHECK_ARG(!ids || (first == 0 && count == 0), "first and count are of ranges without ids");
  PG_CHECK_ARG(first <= INT64_MAX - count, "first and count are out of range");
  IdList list;
  list.ids = pointer<const void>(ids);
  list.id_bytes = ids ? ids->id_bytes("ids") : 0;
  list.first = first;
  list.count = ids ? ids->num_elements() : count;
  list.out_index = int64_values(out_index, "out_index", list.count);
  list.host_begin = int64_values(host_begin, "host_begin", 1);
  list.padded = padded;
  list.max_blocks = max_blocks;
  return list;
}

/// Raises ValueError if results would be written to what is still to be read.
void check_apart(const TableView& table, const IdList& ids, const TensorRef& out) {
  PG_CHECK_ARG(!overlaps(table, out.data, out.num_bytes()),
               "out shares memory with the table: pass another tensor");
  PG_CHECK_ARG(!overlaps(ids, out.data, out.num_bytes()),
               "out shares memory with ids: pass another tensor");
}

/// The memory of `out`, a row of `row_bytes` for each id; bounds the ids' out_index by its rows.
char* rows_for(const TensorRef& out, int64_t row_bytes, IdList* ids) {
  char* const rows = out.bytes("out", checked_product(ids->count, row_bytes));
  if (row_bytes > 0) ids->num_out_rows = out.num_bytes() / row_bytes;
  return rows;
}

/// A DLPack tensor of bytes, its shape, and the owner of its memory.
struct Bytes {
  DlManagedTensor managed;
  int64_t shape;
  PyObject* owner;
};

void delete_bytes(DlManagedTensor* managed) {
  Bytes* bytes = static_cast<Bytes*>(managed->context);
  if (Py_IsInitialized()) {  // a tensor may outlive the interpreter
    py::gil_scoped_acquire gil;
    Py_DECREF(bytes->owner);
  }
  delete bytes;
}

void delete_unused_capsule(PyObject* capsule) {
  // A consumer has renamed the capsule and deletes the tensor.
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;
  auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  managed->deleter(managed);
}

/// Returns memory as a DLPack capsule of uint8 [num_bytes], which keeps `owner` alive.
py::object bytes_as_dlpack(uintptr_t address, int64_t num_bytes, int device, py::object owner) {
  auto* bytes = new Bytes{{}, num_bytes, owner.release().ptr()};
  const DlDevice place = device < 0 ? DlDevice{1, 0} : DlDevice{2, device};
  bytes->managed.tensor = {
      reinterpret_cast<void*>(address), place, 1, {1, 8, 1}, &bytes->shape, nullptr, 0};
  bytes->managed.context = bytes;
  bytes->managed.deleter = &delete_bytes;
  PyObject* capsule = PyCapsule_New(&bytes->managed, "dltensor", &delete_unused_capsule);
  if (capsule == nullptr) {
    delete_bytes(&bytes->managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

RowCodec make_row_codec(StoredType stored, DType dtype, int64_t columns, int64_t group_columns,
                        int64_t scales_begin) {
  PG_CHECK_ARG(columns >= 0 && columns <= INT32_MAX, "columns must be 0 .. 2^31-1");
  PG_CHECK_ARG((group_columns > 0) == (stored == StoredType::kInt8 && columns > 0),
               "group_columns is for int8, and positive there");
  PG_CHECK_ARG(group_columns == 0 || (scales_begin >= columns && scales_begin % 4 == 0),
               "scales_begin must be a multiple of 4 behind the values");
  return {stored, dtype, columns, group_columns, scales_begin};
}

void gather_rows(const LeasedTable& leased, IdList ids, const TensorRef& out,
                 const Launch& launch) {
  const Opened table(leased);
  check_apart(*table, ids, out);
  char* rows = rows_for(out, table->row_bytes, &ids);
  gather_stored({{&leased, nullptr, nullptr, ids, rows}}, {}, launch);
}

/// `scales` is the table of the scales, where they are apart.
void decode_gather(const LeasedTable& leased, const RowCodec& codec, IdList ids,
                   const TensorRef& out, const Launch& launch,
                   const std::optional<LeasedTable>& scales) {
  const Opened table(leased);
  PG_CHECK_ARG(codec.columns == 0 || out.dtype("out") == codec.dtype,
               "out must have the codec's dtype");
  check_apart(*table, ids, out);
  PG_CHECK_ARG(!scales || !overlaps(*Opened(*scales), out.data, out.num_bytes()),
               "out shares memory with the table: pass another tensor");
  char* rows = rows_for(out, checked_product(codec.columns, out.item_bytes), &ids);
  gather_stored({{&leased, &codec, scales ? &*scales : nullptr, ids, rows}}, {}, launch);
}

void signal_flag(uintptr_t flag, uint32_t value, const Launch& launch) {
  auto* word = reinterpret_cast<uint32_t*>(flag);
  PG_ON_DEVICE(launch.device, signal_flag_cpu(word, value), signal_flag_cuda(word, value, launch));
}

/// `given_up` is the address of an int32 that the host and the device reach.
void wait_for_flag(uintptr_t flag, uint32_t value, double timeout, uintptr_t given_up,
                   const Launch& launch) {
  const FlagWait wait{reinterpret_cast<const uint32_t*>(flag), value,
                      static_cast<int64_t>(timeout * 1e9), reinterpret_cast<int32_t*>(given_up)};
  PG_ON_DEVICE(launch.device, wait_for_flag_cpu(wait), wait_for_flag_cuda(wait, launch));
}

void register_ops(py::module_& m) {
  m.def("map_shared", &map_shared, py::arg("fd"), py::arg("bytes"), py::arg("on_disk"),
        ReleaseGil());
  m.def("unmap_shared", &unmap_shared, py::arg("address"), py::arg("bytes"), ReleaseGil());
  m.def("ask_for_huge_pages", &ask_for_huge_pages, py::arg("address"), py::arg("bytes"));
  m.def("populate_pages", &populate_pages, py::arg("address"), py::arg("bytes"),
        py::arg("num_threads"), ReleaseGil());
  m.def("make_huge_pages", &make_huge_pages, py::arg("address"), py::arg("bytes"),
        py::arg("num_threads"), ReleaseGil());
  m.def("bytes_as_dlpack", &bytes_as_dlpack, py::arg("address"), py::arg("num_bytes"),
        py::arg("device"), py::arg("owner"));
  m.def("signal_flag", &signal_flag, py::arg("flag"), py::arg("value"), py::arg("launch"),
        ReleaseGil());
  m.def("wait_for_flag", &wait_for_flag, py::arg("flag"), py::arg("value"), py::arg("timeout"),
        py::arg("given_up"), py::arg("launch"), ReleaseGil());
  m.def("check_ids", &check_ids, py::arg("ids"), py::arg("limit"), py::arg("num_threads"),
        ReleaseGil());
  m.def("gather", &gather_rows, py::arg("table"), py::arg("ids"), py::arg("out"), py::arg("launch"),
        ReleaseGil());
  m.def("decode_gather", &decode_gather, py::arg("table"), py::arg("codec"), py::arg("ids"),
        py::arg("out"), py::arg("launch"), py::arg("scales") = py::none(), ReleaseGil());
  m.def(
      "stage",
      [](const LeasedTable& leased, const IdList& ids, const TensorRef& buffer,
         const TensorRef& out, const Launch& launch) {
        const Opened table(leased);
        const int64_t num_bytes = checked_product(ids.count, table->row_bytes);
        char* pinned = buffer.bytes("buffer", num_bytes);
        char* rows = out.bytes("out", num_bytes);
        stage_rows(*table, ids, pinned, launch.num_threads, [=](int64_t offset, int64_t num_bytes) {
          const char* from = pinned + offset;
          PG_ON_DEVICE(launch.device, std::memcpy(rows + offset, from, num_bytes),
                       copy_to_gpu(rows + offset, from, num_bytes, launch.device, launch.stream));
        });
      },
      py::arg("table"), py::arg("ids"), py::arg("buffer"), py::arg("out"), py::arg("launch"),
      ReleaseGil());
  m.def(
      "alignment_bits", [](const LeasedTable& table) { return alignment_bits(*Opened(table)); },
      py::arg("table"));
  m.def(
      "row_addresses",
      [](const LeasedTable& leased, IdList ids, const TensorRef& out, const Launch& launch) {
        const Opened table(leased);
        int64_t* addresses = out.int64_values("out", ids.count);
        ids.num_out_rows = out.num_elements();
        PG_ON_DEVICE(launch.device, row_addresses_cpu(*table, ids, addresses, launch.num_threads),
                     row_addresses_cuda(*table, ids, addresses, launch.device, launch.stream));
      },
      py::arg("table"), py::arg("ids"), py::arg("out"), py::arg("launch"), ReleaseGil());
  m.def(
      "scatter",
      [](const LeasedTable& leased, const IdList& ids, const TensorRef& values,
         const Launch& launch) {
        const Opened table(leased);
        PG_CHECK_ARG(ids.out_index == nullptr, "out_index is for gathers");
        PG_CHECK_ARG(!overlaps(*table, values.data, values.num_bytes()),
                     "values share memory with the table: pass a copy");
        PG_CHECK_ARG(!overlaps(*table, ids.ids, ids.count * ids.id_bytes),
                     "ids share memory with the table: pass a copy");
        const char* rows = values.bytes("values", checked_product(ids.count, table->row_bytes));
        PG_ON_DEVICE(launch.device, scatter_cpu(*table, ids, rows, launch.num_threads),
                     scatter_cuda(*table, ids, rows, launch.device, launch.stream));
      },
      py::arg("table"), py::arg("ids"), py::arg("values"), py::arg("launch"), ReleaseGil());
}

void register_content(py::module_& m) {
  m.def("count_content_pieces", &Content::count_pieces, py::arg("tensors"));
  py::class_<Content>(m, "Content")
      .def(py::init<const std::vector<TensorRef>&, const std::vector<bool>&, const TensorRef&>(),
           py::kw_only(), py::arg("tensors"), py::arg("are_edge_indices"), py::arg("digests"))
      .def("write", &Content::write, py::arg("launch"), ReleaseGil())
      .def("is_unchanged", &Content::is_unchanged, py::arg("launch"), ReleaseGil());
}

#ifdef PEERGRAPH_CUDA
void register_cuda(py::module_& m) {
  m.def("cuda_malloc", &cuda_malloc, py::arg("device"), py::arg("bytes"), ReleaseGil());
  m.def("cuda_free", &cuda_free, py::arg("device"), py::arg("address"), ReleaseGil());
  m.def(
      "ipc_handle",
      [](int device, uintptr_t address) { return py::bytes(ipc_handle(device, address)); },
      py::arg("device"), py::arg("address"));
  m.def("open_ipc", &open_ipc, py::arg("device"), py::arg("handle"), ReleaseGil());
  m.def("close_ipc", &close_ipc, py::arg("device"), py::arg("address"), ReleaseGil());
  m.def("enable_peer_access", &enable_peer_access, py::arg("device"), py::arg("peer"));
  m.def("register_host", &register_host, py::arg("device"), py::arg("address"), py::arg("bytes"),
        ReleaseGil());
  m.def("unregister_host", &unregister_host, py::arg("device"), py::arg("address"), ReleaseGil());
  m.def("use_thread_local_capture_mode", &use_thread_local_capture_mode);
  m.def("raise_pending", &raise_pending, py::arg("device"), ReleaseGil());
  m.def("num_raised_writes", &num_raised_writes);
}
#endif

}  // namespace

void register_memory(py::module_& m) {
  m.attr("max_shards") = kMaxShards;
  py::class_<Lease, std::shared_ptr<Lease>>(m, "Lease")
      .def(py::init<>())
      .def("close", &Lease::close, py::arg("why"))
      .def("check", &Lease::check)
      .def_property_readonly("closed", &Lease::closed)
      .def_property_readonly("used_here", &Lease::used_here)
      .def_property_readonly("used_elsewhere", &Lease::used_elsewhere);
  py::class_<LeasedIdMap>(m, "IdMapView")
      .def(py::init(&make_id_map), py::arg("ids") = py::none(), py::arg("leases") = Leases{});
  py::class_<LeasedTable>(m, "TableView")
      .def(py::init<>())
      .def(py::init(&make_table_view), py::kw_only(), py::arg("replicated"), py::arg("sharded"),
           py::arg("rows"), py::arg("row_bytes"), py::arg("rank"), py::arg("replicas"),
           py::arg("shards"), py::arg("host"), py::arg("order") = py::none(),
           py::arg("rows_on_disk") = 0, py::arg("disk") = 0, py::arg("block_rows") = 0,
           py::arg("leases") = Leases{})
      .def_property_readonly("rows", [](const LeasedTable& v) { return v.unopened().map.rows; })
      .def_property_readonly("row_bytes",
                             [](const LeasedTable& v) { return v.unopened().row_bytes; })
      .def_property_readonly("leases", &LeasedTable::leases)
      .def("to_bytes", [](const LeasedTable& leased) {
        const Opened view(leased);
        return py::bytes(reinterpret_cast<const char*>(&*view), sizeof(TableView));
      });
  py::enum_<StoredType>(m, "StoredType")
      .value("float16", StoredType::kFloat16)
      .value("bfloat16", StoredType::kBfloat16)
      .value("float8_e4m3", StoredType::kFloat8E4m3)
      .value("float8_e5m2", StoredType::kFloat8E5m2)
      .value("int8", StoredType::kInt8);
  py::class_<RowCodec>(m, "RowCodec")
      .def(py::init(&make_row_codec), py::kw_only(), py::arg("stored"), py::arg("dtype"),
           py::arg("columns"), py::arg("group_columns") = 0, py::arg("scales_begin") = 0);
  py::class_<IdList>(m, "IdList")
      .def(py::init(&make_id_list), py::kw_only(), py::arg("ids") = py::none(),
           py::arg("first") = 0, py::arg("count") = 0, py::arg("out_index") = py::none(),
           py::arg("host_begin") = py::none(), py::arg("padded") = false,
           py::arg("max_blocks") = 0);
  register_ops(m);
  register_content(m);
#ifdef PEERGRAPH_CUDA
  register_cuda(m);
#endif
}

}  // namespace peergraph
