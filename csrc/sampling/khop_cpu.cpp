#include "sampling/khop_cpu.h"

#include <algorithm>
#include <cstring>

#include "common/parallel.h"
#include "sampling/choose.h"
#include "sampling/induced.h"
#include "sampling/neighbor.h"

namespace peergraph {
namespace {

constexpr int64_t kTargetsPerThread = 512;
constexpr int64_t kNodesPerThread = 1 << 15;
constexpr int64_t kPrefetchAhead = 16;

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int num_threads) : num_threads_(num_threads) {}

  void fill(void* to, int byte, int64_t num_bytes) override { std::memset(to, byte, num_bytes); }

  void copy(void* to, const void* from, int64_t num_bytes) override {
    std::memcpy(to, from, num_bytes);
  }

  void add_seeds(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                 NodeList& nodes) override {
    for (int64_t i = 0; i < seeds.count; ++i)
      if (seeds.ids[i] < 0 || seeds.ids[i] >= type.num_nodes) throw_bad_seed(type, i, seeds.ids[i]);
    for (int64_t i = 0; i < seeds.count; ++i) {
      const int64_t tree = nodes.trees == nullptr ? 0 : first_tree + i;
      const int64_t node = type.to_internal(seeds.ids[i]);
      keep_first(nodes.index.insert(tree, node), nodes.count);
      push_back(nodes, tree, node);
    }
  }

  void reindex(const NodeList& nodes) override {
    for (int64_t row = 0; row < nodes.count; ++row)
      keep_first(nodes.index.insert(nodes.tree(row), nodes.ids[row]), row);
  }

  void plan(const RelationSpec& relation, Hop& hop) override {
    const CscView& csc = relation.csc;
    parallel_for(hop.num_targets, kTargetsPerThread, num_threads_, [&](int64_t begin, int64_t end) {
      if (!relation.choice.plain()) return count_choices_cpu(csc, relation.choice, hop, begin, end);
      for (int64_t t = begin; t < end; ++t)
        hop.offsets[t] = hop.edges_of(csc.degree(hop.targets[t]));
    });
    scan_offsets(hop);
  }

  void sample(const RelationSpec& relation, Hop& hop, NodeList& sources) override {
    const CscView& csc = relation.csc;
    parallel_for(hop.num_targets, kTargetsPerThread, num_threads_, [&](int64_t begin, int64_t end) {
      if (relation.choice.plain())
        sample_neighbors_cpu(csc, hop, begin, end);
      else
        choose_neighbors_cpu(csc, relation.choice, hop, begin, end);
    });
    hop.num_edges = hop.slots;
    append_unique(hop, sources);
  }

  void plan_induced(const RelationSpec& relation, Hop& hop, const NodeIndex& sources) override {
    parallel_for(hop.num_targets, kTargetsPerThread, num_threads_, [&](int64_t begin, int64_t end) {
      count_induced_cpu(relation.csc, relation.choice, hop, sources, begin, end);
    });
    scan_offsets(hop);
  }

  void induce(const RelationSpec& relation, Hop& hop, const NodeIndex& sources) override {
    parallel_for(hop.num_targets, kTargetsPerThread, num_threads_, [&](int64_t begin, int64_t end) {
      induce_cpu(relation.csc, relation.choice, hop, sources, begin, end);
    });
  }

  void write_edges(const Hop& hop, const NodeIndex&, const EdgeOutput& out) override {
    parallel_for(hop.num_targets, kTargetsPerThread, num_threads_, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t e = hop.offsets[t]; e < hop.offsets[t + 1]; ++e) {
          store_id(out.row, out.index_bytes, out.begin + e,
                   load_id(hop.sources, hop.index_bytes, e));
          store_id(out.col, out.index_bytes, out.begin + e, hop.first_target + t);
          if (out.edge_ids != nullptr) out.edge_ids[out.begin + e] = hop.edge_ids[e];
        }
    });
    if (out.duplicates != nullptr)
      for (int64_t e = 0; e < hop.num_edges; ++e)
        ++out.duplicates[load_id(hop.sources, hop.index_bytes, e)];
  }

  void write_nodes(const NodeTypeSpec& type, const NodeList& nodes,
                   const NodesResult& out) override {
    parallel_for(nodes.count, kNodesPerThread, num_threads_, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) out.ids[row] = type.to_user(nodes.ids[row]);
      if (out.batch != nullptr)
        for (int64_t row = begin; row < end; ++row) out.batch[row] = nodes.trees[row];
    });
    if (nodes.index.direct != nullptr)
      for (int64_t row = 0; row < nodes.count; ++row) nodes.index.direct[nodes.ids[row]] = kUnknown;
  }

  void finish() override {}

 private:
  static void keep_first(uint32_t& word, int64_t row) {
    if (word == kUnknown) word = static_cast<uint32_t>(row);
  }

  /// Replaces counts by their exclusive sums; their total is the number of slots.
  static void scan_offsets(Hop& hop) {
    int64_t total = 0;
    for (int64_t t = 0; t < hop.num_targets; ++t) {
      const int64_t count = hop.offsets[t];
      hop.offsets[t] = total;
      total += count;
    }
    hop.offsets[hop.num_targets] = total;
    hop.slots = total;
  }

  static void push_back(NodeList& nodes, int64_t tree, int64_t node) {
    nodes.ids[nodes.count] = node;
    if (nodes.trees != nullptr) nodes.trees[nodes.count] = static_cast<int32_t>(tree);
    ++nodes.count;
  }

  /// Gives new sources their rows in order of appearance, and replaces the hop's sources by rows,
  /// so that the index is looked up once an edge. In turn: the order is the result.
  static void append_unique(Hop& hop, NodeList& nodes) {
    for (int64_t t = 0; t < hop.num_targets; ++t) {
      const int64_t tree = hop.tree(t);
      for (int64_t e = hop.offsets[t]; e < hop.offsets[t + 1]; ++e) {
        if (nodes.index.direct != nullptr && e + kPrefetchAhead < hop.slots)
          __builtin_prefetch(
              &nodes.index.direct[load_id(hop.sources, hop.index_bytes, e + kPrefetchAhead)]);
        const int64_t node = load_id(hop.sources, hop.index_bytes, e);
        uint32_t& word = nodes.index.insert(tree, node);
        if (word == kUnknown) {
          word = static_cast<uint32_t>(nodes.count);
          push_back(nodes, tree, node);
        }
        store_id(hop.sources, hop.index_bytes, e, word);
      }
    }
  }

  const int num_threads_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int num_threads) {
  return std::make_unique<CpuBackend>(num_threads);
}

}  // namespace peergraph
