// Batches of csrc/sampling/ahead in a program of their own, for ThreadSanitizer, which would not
// know the locks of Python and of torch: tests/sanitize.sh compiles and runs it.
#include "sampling/ahead/batch_thread.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
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
  return torch;
}

/// Each node has edges from the nodes after it; row i of the table has the values i.
struct Graph {
  std::vector<int64_t> indptr, edge_begin;
  std::vector<int32_t> indices;
  std::vector<float> rows;
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
    TableView view;
    view.map.replicated = view.map.rows = kNodes;
    view.row_bytes = kColumns * sizeof(float);
    view.num_replicas = 1;
    view.replicas[0] = reinterpret_cast<char*>(rows.data());
    TableOfBatch table;
    table.table = {view, Leases{lease}};
    table.row_bytes = view.row_bytes;
    table.row_shape = {kColumns};
    tables = std::make_shared<TablesOfBatch>(TablesOfBatch{{table}});
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
