// Batches of csrc/sampling/ahead in a program of their own, for ThreadSanitizer, which would not
// know the locks of Python and of torch: tests/sanitize.sh compiles and runs it.
#include "sampling/ahead/batch_thread.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

namespace {

using namespace peergraph;

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      std::fprintf(stderr, "%d: %s\n", __LINE__, #condition); \
      std::exit(1);                                           \
    }                                                         \
  } while (0)

constexpr int64_t kNodes = 1000, kDegree = 8, kColumns = 5;
constexpr int32_t kInt64 = 4;

/// Memory in the place of torch's tensors.
TorchFunctions functions() {
  TorchFunctions torch;
  torch.empty = [](int64_t dims, const int64_t* sizes, const int64_t*, int32_t, int32_t, int32_t,
                   void** tensor) -> int32_t {
    int64_t count = 1;
    for (int64_t dim = 0; dim < dims; ++dim) count *= sizes[dim];
    *tensor = new std::vector<int64_t>(static_cast<size_t>(count));
    return 0;
  };
  torch.data_pointer = [](void* tensor, void** data) -> int32_t {
    *data = static_cast<std::vector<int64_t>*>(tensor)->data();
    return 0;
  };
  torch.delete_tensor = [](void* tensor) -> int32_t {
    delete static_cast<std::vector<int64_t>*>(tensor);
    return 0;
  };
  torch.int64 = kInt64;
  return torch;
}

/// Memory of rows that are all on the first tier.
template <typename Value>
StoredTable table_of(std::vector<Value>& values, int64_t rows, int64_t columns, int32_t dtype,
                     const Leases& leases) {
  TableView view;
  view.map.replicated = view.map.rows = rows;
  view.row_bytes = columns * static_cast<int64_t>(sizeof(Value));
  view.num_replicas = 1;
  view.replicas[0] = reinterpret_cast<char*>(values.data());
  return {{view, leases}, {}, {}, dtype, view.row_bytes, {columns}};
}

/// Each node has edges from the nodes after it. Row i of the first table has the values i; the list
/// of row i of the second one has i % 3 elements, which are i.
struct Graph {
  std::vector<int64_t> indptr, edge_begin;
  std::vector<int32_t> indices;
  std::vector<float> rows;
  std::vector<int64_t> bounds, elements;
  std::vector<uint32_t> words = std::vector<uint32_t>(kNodes, UINT32_MAX);
  NodeMap map{words.data(), kNodes, 24};
  std::shared_ptr<const Leased<SamplerSpec>> spec;
  std::shared_ptr<const TablesOfBatch> tables;
  std::shared_ptr<Lease> lease = std::make_shared<Lease>();

  Graph() {
    for (int64_t node = 0; node <= kNodes; ++node) indptr.push_back(node * kDegree);
    for (int64_t node = 0; node < kNodes; ++node) {
      edge_begin.push_back(node * kDegree);
      for (int64_t edge = 0; edge < kDegree; ++edge)
        indices.push_back(static_cast<int32_t>((node + 1 + edge) % kNodes));
      rows.insert(rows.end(), kColumns, static_cast<float>(node));
      bounds.push_back(static_cast<int64_t>(elements.size()));
      elements.insert(elements.end(), node % 3, node);
      bounds.push_back(static_cast<int64_t>(elements.size()));
    }
    RelationSpec relation;
    relation.csc.map.replicated = relation.csc.map.rows = kNodes;
    relation.csc.replicas[0] = {indptr.data(), indices.data(), edge_begin.data()};
    relation.csc.num_edges = kNodes * kDegree;
    relation.choice.relations = 1;
    relation.fanouts = {3, 2};
    SamplerSpec sampler;
    sampler.node_types.push_back({"node", kNodes, {}, {}});
    sampler.relations.push_back(relation);
    sampler.num_hops = 2;
    spec = std::make_shared<Leased<SamplerSpec>>(sampler, Leases{lease});
    const auto stored = [](StoredTable table) {
      return std::make_shared<const StoredTable>(std::move(table));
    };
    const auto num_elements = static_cast<int64_t>(elements.size());
    tables = std::make_shared<TablesOfBatch>(
        TablesOfBatch{{{stored(table_of(rows, kNodes, kColumns, 0, {lease})), nullptr, false, 0},
                       {stored(table_of(bounds, kNodes, 2, kInt64, {lease})),
                        stored(table_of(elements, num_elements, 1, kInt64, {lease})), false, 0}},
                      1});
  }

  BatchRequest request(const std::vector<int64_t>& seeds, uint64_t seed, int64_t work_space) {
    BatchRequest result;
    result.spec = spec;
    result.seeds = {{0, seeds.data(), static_cast<int64_t>(seeds.size())}};
    result.seed = seed;
    result.maps = {&map};
    result.work_space = work_space;
    result.tables = tables;
    result.launch.num_threads = 2;
    return result;
  }
};

void check(const BatchResult& batch, const std::vector<int64_t>& seeds) {
  CHECK(!batch.error);
  const auto* nodes = static_cast<const int64_t*>(batch.arrays.nodes.data());
  const auto* rows = static_cast<const float*>(batch.rows.at(0).data());
  int64_t count = 0;
  for (int64_t of_hop : batch.sample.num_nodes.at(0)) count += of_hop;
  for (size_t i = 0; i < seeds.size(); ++i) CHECK(nodes[i] == seeds[i]);
  for (int64_t i = 0; i < count * kColumns; ++i)
    CHECK(rows[i] == static_cast<float>(nodes[i / kColumns]));
  const auto* ends = static_cast<const int64_t*>(batch.rows.at(1).data());
  const auto* elements = static_cast<const int64_t*>(batch.rows.at(2).data());
  CHECK(ends[0] == 0);
  for (int64_t i = 0; i < count; ++i) {
    CHECK(ends[i + 1] - ends[i] == nodes[i] % 3);
    for (int64_t at = ends[i]; at < ends[i + 1]; ++at) CHECK(elements[at] == nodes[i]);
  }
}

BatchResult take(BatchThread& thread) {
  while (!thread.wait(0.01)) {
  }
  return thread.take(0);
}

}  // namespace

int main() {
  const TorchFunctions torch = functions();
  Graph graph;
  std::vector<std::vector<int64_t>> seeds;
  for (int64_t batch = 0; batch < 40; ++batch) seeds.push_back({batch, 2 * batch + 50, 999});
  for (int depth : {1, 3}) {
    BatchThread thread(torch, -1, 0, 1 << 20);
    size_t begun = 0;
    for (; begun < static_cast<size_t>(depth); ++begun)
      thread.submit(graph.request(seeds[begun], begun, 0), std::nullopt);
    for (size_t done = 0; done < seeds.size(); ++done) {
      const BatchResult batch = take(thread);
      if (begun < seeds.size()) {
        thread.submit(graph.request(seeds[begun], begun, 0), std::nullopt);
        ++begun;
      }
      check(batch, seeds[done]);
    }
  }
  {  // an error, which batches of the same work space share
    const std::vector<int64_t> wrong{3, kNodes};
    BatchThread thread(torch, -1, 0, 1 << 20);
    thread.submit(graph.request(wrong, 0, 0), std::nullopt);
    thread.submit(graph.request(seeds[0], 0, 0), std::nullopt);
    CHECK(take(thread).error);
    CHECK(take(thread).error);
    graph.words.assign(kNodes, UINT32_MAX);
    graph.map = NodeMap(graph.words.data(), kNodes, 24);
    thread.submit(graph.request(seeds[0], 0, 1), std::nullopt);
    check(take(thread), seeds[0]);
    thread.close();
    CHECK(!thread.has_failed());
  }
  for (int open = 0; open < 20; ++open) {  // closed with work in all states
    BatchThread thread(torch, -1, 0, 1 << 20);
    for (int batch = 0; batch < open % 5; ++batch)
      thread.submit(graph.request(seeds[batch], 0, 0), std::nullopt);
    if (open % 2 == 0) thread.close();
  }
  {  // memory that is closed meanwhile
    BatchThread thread(torch, -1, 0, 1 << 20);
    for (int batch = 0; batch < 10; ++batch)
      thread.submit(graph.request(seeds[batch], 0, 0), std::nullopt);
    graph.lease->close("closed");
    while (graph.lease->used_elsewhere()) {
    }
    for (int batch = 0; batch < 10; ++batch) take(thread);
    thread.submit(graph.request(seeds[0], 0, 1), std::nullopt);
    CHECK(take(thread).error);
  }
  return 0;
}
