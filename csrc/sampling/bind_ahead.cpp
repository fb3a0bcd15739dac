// Bindings of the thread that makes batches ahead.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/bind.h"
#include "common/check.h"
#include "memory/bind_torch_tensors.h"
#include "memory/row_lists.h"
#include "sampling/ahead/batch_thread.h"
#include "sampling/khop/backend.h"

namespace py = pybind11;

namespace peergraph {
namespace {

/// As TableOfBatch.
using TableOfBatchTuple = std::tuple<std::shared_ptr<StoredTable>,
                                     std::optional<std::shared_ptr<StoredTable>>, bool, int>;

std::shared_ptr<TablesOfBatch> make_tables_of_batch(const std::vector<TableOfBatchTuple>& tables) {
  auto result = std::make_shared<TablesOfBatch>();
  for (const auto& [table, elements, of_edges, type] : tables) {
    PG_CHECK_ARG(table, "a table of a batch is missing");
    if (elements) ++result->num_lists;
    result->tables.push_back({table, elements.value_or(nullptr), of_edges, type});
  }
  return result;
}

/// A thread, and the objects of Python whose memory its requests refer to.
class BoundBatchThread {
 public:
  BoundBatchThread(const TorchFunctions& torch, const Launch& launch, int64_t most_scratch,
                   AdoptTensors adopt)
      : launch_(launch),
        adopt_(std::move(adopt)),
        thread_(torch, launch.device, launch.stream, most_scratch) {
    PG_CHECK_ARG(launch.device < 0 || torch.set_stream != nullptr, "a GPU needs a stream of torch");
  }

  void submit(int64_t number, const std::shared_ptr<Leased<SamplerSpec>>& sampler,
              const std::vector<std::tuple<int, TensorRef>>& seeds, uint64_t seed,
              const std::optional<TensorRef>& seed_times,
              const std::optional<TensorRef>& seed_starts, const std::vector<NodeMap*>& maps,
              const std::optional<TensorRef>& mailbox, int64_t work_space,
              const std::shared_ptr<TablesOfBatch>& tables,
              const std::optional<TensorRef>& list_sizes, int64_t max_blocks, int num_threads,
              std::optional<uintptr_t> after, py::object memory) {
    const SamplerSpec& spec = sampler->unopened();
    BatchRequest request;
    request.spec = sampler;
    int64_t num_seeds = 0;
    for (const auto& [type, ids] : seeds) {
      PG_CHECK_ARG(type >= 0 && static_cast<size_t>(type) < spec.node_types.size(),
                   "seeds of a node type that does not exist");
      request.seeds.push_back({type, ids.int64_values("seeds"), ids.num_elements()});
      num_seeds += ids.num_elements();
    }
    request.seed = seed;
    request.seed_times = {int64_values(seed_times, "seed_times", num_seeds),
                          int64_values(seed_starts, "seed_starts", num_seeds)};
    check_maps(spec, maps);
    request.maps = maps;
    request.mailbox = int64_values(mailbox, "mailbox", mailbox_words(spec));
    PG_CHECK_ARG(launch_.device < 0 || request.mailbox != nullptr, "a GPU needs a mailbox");
    request.work_space = work_space;
    for (const TableOfBatch& table : tables->tables)
      PG_CHECK_ARG(!table.of_edges || spec.edge_ids, "rows of edges need edge ids");
    request.tables = tables;
    const int64_t words = list_size_words(tables->num_lists);
    PG_CHECK_ARG(launch_.device < 0 || words == 0 || list_sizes, "lists on a GPU need sizes");
    request.list_sizes = int64_values(list_sizes, "list_sizes", words);
    request.max_blocks = max_blocks;
    request.launch = launch_;
    request.launch.num_threads = num_threads;
    thread_.submit(std::move(request), after);
    memory_.push_back({number, std::move(memory)});
  }

  /// The number of the oldest batch; none if there is no batch.
  std::optional<int64_t> oldest() const {
    return memory_.empty() ? std::nullopt : std::optional<int64_t>(memory_.front().number);
  }

  bool wait(double seconds) { return thread_.wait(seconds); }

  /// Returns None for a batch without memory; else counts, the arrays, and what gather_tables
  /// returns.
  /// Raises the error of the batch.
  py::object take(uintptr_t reader) {
    BatchResult result = thread_.take(reader);
    memory_.pop_front();
    try {
      if (result.error) std::rethrow_exception(result.error);
    } catch (const std::bad_alloc&) {
      return py::none();
    }
    py::list handles;
    const auto add = [&](TorchTensor& tensor) {
      if (tensor) append_handle(handles, tensor);
    };
    BatchArrays& a = result.arrays;
    TorchTensor* const arrays[] = {&a.nodes,      &a.batch,    &a.duplicates,
                                   &a.edge_index, &a.edge_ids, &a.offsets};
    std::vector<bool> has_array;
    for (TorchTensor* array : arrays) {
      has_array.push_back(static_cast<bool>(*array));
      add(*array);
    }
    for (TorchTensor& rows : result.rows) add(rows);
    const py::list tensors = adopt_(handles);
    size_t next = 0;
    py::list returned;
    for (const bool has : has_array)
      returned.append(has ? py::object(tensors[next++]) : py::object(py::none()));
    py::list rows;
    while (next < tensors.size()) rows.append(tensors[next++]);
    const SampleResult& sample = result.sample;
    return py::make_tuple(
        py::make_tuple(sample.num_nodes, sample.num_edges, sample.first_target, sample.num_targets),
        returned, rows);
  }

  void close() { thread_.close(); }

  bool has_failed() const { return thread_.has_failed(); }

 private:
  static void check_maps(const SamplerSpec& spec, const std::vector<NodeMap*>& maps) {
    if (spec.disjoint) return;
    PG_CHECK_ARG(maps.size() == spec.node_types.size(), "one direct map for each node type");
    for (size_t type = 0; type < maps.size(); ++type)
      PG_CHECK_ARG(
          maps[type] != nullptr && maps[type]->num_nodes() == spec.node_types[type].num_nodes,
          "a direct map must have a word for each node");
  }

  /// What a request refers to.
  struct Memory {
    int64_t number;
    py::object owner;
  };

  Launch launch_;
  AdoptTensors adopt_;
  std::deque<Memory> memory_;
  BatchThread thread_;  // ends before the memory
};

}  // namespace

void register_ahead(py::module_& m) {
  py::class_<TablesOfBatch, std::shared_ptr<TablesOfBatch>>(m, "TablesOfBatch")
      .def(py::init(&make_tables_of_batch), py::arg("tables"));
  py::class_<BoundBatchThread>(m, "BatchThread")
      .def(py::init<const TorchFunctions&, const Launch&, int64_t, AdoptTensors>(), py::kw_only(),
           py::arg("torch"), py::arg("launch"), py::arg("most_scratch"), py::arg("adopt"))
      .def("submit", &BoundBatchThread::submit, py::kw_only(), py::arg("number"),
           py::arg("sampler"), py::arg("seeds"), py::arg("seed"), py::arg("seed_times"),
           py::arg("seed_starts"), py::arg("maps"), py::arg("mailbox"), py::arg("work_space"),
           py::arg("tables"), py::arg("list_sizes"), py::arg("max_blocks"), py::arg("num_threads"),
           py::arg("after"), py::arg("memory"))
      .def("wait", &BoundBatchThread::wait, py::arg("seconds"), ReleaseGil())
      .def("take", &BoundBatchThread::take, py::arg("reader"))
      .def("close", &BoundBatchThread::close, ReleaseGil())
      .def_property_readonly("oldest", &BoundBatchThread::oldest)
      .def_property_readonly("has_failed", &BoundBatchThread::has_failed);
}

}  // namespace peergraph
