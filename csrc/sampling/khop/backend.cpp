#include "sampling/khop/backend.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "common/on_device.h"
#include "common/ordered_chunks.h"
#include "common/read_once.h"
#include "common/workers.h"
#include "sampling/append_unique/append_unique.h"
#include "sampling/neighbor/neighbor.h"
#include "sampling/neighbor/without_replacement.h"
#include "sampling/subgraph/induced.h"
#include "sampling/walks/pinsage.h"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

constexpr int64_t kTargetsPerThread = 512;
constexpr int64_t kNodesPerThread = 1 << 15;
constexpr int64_t kFilledPerThread = 1 << 20;
constexpr int64_t kTargetsAtATime = 256;
// Sequential appending costs one thread about a quarter of the work; claims cost every thread
// more.
constexpr int64_t kFewThreads = 4;

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int num_threads) : num_threads_(num_threads), workers_(num_threads) {}

  void fill(void* to, int byte, int64_t num_bytes) override {
    workers_.run(num_bytes, kFilledPerThread, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(to) + begin, byte, end - begin);
    });
  }

  void copy(void* to, const void* from, int64_t num_bytes) override {
    std::memcpy(to, from, num_bytes);
  }

  void add_seeds(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                 NodeList& nodes) override {
    for (int64_t i = 0; i < seeds.count; ++i)
      if (seeds.ids[i] < 0 || seeds.ids[i] >= type.num_nodes) throw_bad_seed(type, i, seeds.ids[i]);
    for (int64_t i = 0; i < seeds.count; ++i) {
      const int64_t tree = nodes.trees == nullptr ? 0 : first_tree + i;
      const int64_t id = read_once(seeds.ids + i);
      if (!is_below(id, type.num_nodes)) throw_bad_seed(type, i, id);  // changed since the check
      const int64_t node = type.to_internal(id);
      keep_first(nodes.index, tree, node, nodes.count);
      push_back(nodes, tree, node);
    }
  }

  void reindex(const NodeList& nodes) override {
    for (int64_t row = 0; row < nodes.count; ++row)
      keep_first(nodes.index, nodes.tree(row), nodes.ids[row], row);
  }

  void sample_neighbors(std::vector<HopTask>& tasks, const MakeRoom& make_room) override {
    for (const HopTask& task : tasks) {
      const auto& visits = task.relation->visits;
      if (visits) {
        most_visited_.find(*visits, *task.hop, num_threads_);
        scan_offsets(*task.hop);
      } else {
        count_neighbors(*task.relation, *task.hop);
      }
      make_room(&task, 1);
      if (task.hop->slots > 0) sample(task);
    }
  }

  void induce(std::vector<HopTask>& tasks, const MakeRoom& make_room) override {
    for (const HopTask& task : tasks) {
      const RelationSpec& relation = *task.relation;
      const NodeIndex& sources = task.sources->index;
      Hop& hop = *task.hop;
      const int64_t pieces = workers_.pieces_of(hop.num_targets, kTargetsPerThread);
      const auto first = [&](int64_t piece) { return hop.num_targets * piece / pieces; };
      std::vector<InducedEdges> edges(pieces);
      workers_.run_pieces(pieces, [&](int64_t piece) {
        find_induced_cpu(relation.csc, relation.choice, hop, sources, first(piece),
                         first(piece + 1), edges[piece]);
      });
      scan_offsets(hop);
      make_room(&task, 1);
      workers_.run_pieces(pieces, [&](int64_t piece) {
        write_induced_cpu(relation.csc, hop, first(piece), edges[piece]);
      });
      hop.num_edges = hop.slots;
    }
  }

  void write_edges(const std::vector<HopTask>& tasks,
                   const std::vector<EdgeOutput>& outputs) override {
    for (size_t i = 0; i < tasks.size(); ++i) write_edges(*tasks[i].hop, outputs[i]);
  }

  void write_nodes(const std::vector<NodesWrite>& writes) override {
    for (const NodesWrite& each : writes) {
      const NodeList& nodes = *each.nodes;
      const NodesOutput& out = each.out;
      workers_.run(nodes.count, kNodesPerThread, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          out.ids[row] = each.type->to_user(nodes.ids[row]);
        if (out.batch != nullptr)
          for (int64_t row = begin; row < end; ++row) out.batch[row] = nodes.trees[row];
      });
    }
  }

  void finish() override {}

 private:
  static void keep_first(const NodeIndex& index, int64_t tree, int64_t node, int64_t row) {
    uint32_t& word = index.insert(tree, node);
    word = std::min(word, index.row_word(row));
  }

  /// Finds the lists of the targets; writes offsets, sets slots.
  void count_neighbors(const RelationSpec& relation, Hop& hop) {
    const Choice& choice = relation.choice;
    if (hop.num_targets > num_lists_) {
      lists_.reset(new Neighbors[hop.num_targets]);
      num_lists_ = hop.num_targets;
    }
    workers_.run(hop.num_targets, kTargetsPerThread, [&](int64_t begin, int64_t end) {
      count_neighbors_cpu(relation.csc, hop, begin, end, lists_.get());
    });
    if (!choice.is_uniform_without_replacement()) {
      if (choice.timed() && !choice.bisects(hop.fanout)) times_.plan(lists_.get(), hop.num_targets);
      workers_.run(hop.num_targets, kTargetsPerThread, [&](int64_t begin, int64_t end) {
        count_choices_cpu(relation.csc, choice, hop, lists_.get(), times_, begin, end);
      });
    }
    scan_offsets(hop);
  }

  void sample(const HopTask& task) {
    Hop& hop = *task.hop;
    const int64_t pieces = workers_.pieces_of(hop.num_targets, kTargetsPerThread);
    if (pieces <= kFewThreads)
      sample_in_turn(*task.relation, hop, *task.sources, pieces);
    else
      sample_by_claims(*task.relation, hop, *task.sources, pieces);
    hop.num_edges = hop.slots;
  }

  void write_edges(const Hop& hop, const EdgeOutput& out) {
    workers_.run(hop.num_targets, kTargetsPerThread, [&](int64_t begin, int64_t end) {
      if (out.index_bytes == 4)
        write_targets<int32_t>(hop, out, begin, end);
      else
        write_targets<int64_t>(hop, out, begin, end);
    });
    if (out.duplicates == nullptr) return;
    workers_.run(hop.num_edges, kNodesPerThread, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e)
        __atomic_fetch_add(out.duplicates + load_id(hop.sources, hop.index_bytes, e), 1,
                           __ATOMIC_RELAXED);
    });
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

  /// Writes the edges of targets [begin, end). Their sources are rows already.
  template <typename Index>
  static void write_targets(const Hop& hop, const EdgeOutput& out, int64_t begin, int64_t end) {
    const int64_t first = hop.offsets[begin], last = hop.offsets[end];
    auto* const row = static_cast<Index*>(out.row) + out.begin;
    auto* const col = static_cast<Index*>(out.col) + out.begin;
    if (hop.index_bytes == 4)
      std::copy(static_cast<const int32_t*>(hop.sources) + first,
                static_cast<const int32_t*>(hop.sources) + last, row + first);
    else
      std::copy(static_cast<const int64_t*>(hop.sources) + first,
                static_cast<const int64_t*>(hop.sources) + last, row + first);
    for (int64_t t = begin; t < end; ++t)
      std::fill(col + hop.offsets[t], col + hop.offsets[t + 1],
                static_cast<Index>(hop.first_target + t));
    if (out.edge_ids != nullptr)
      std::copy(hop.edge_ids + first, hop.edge_ids + last, out.edge_ids + out.begin + first);
  }

  static void push_back(NodeList& nodes, int64_t tree, int64_t node) {
    nodes.ids[nodes.count] = node;
    if (nodes.trees != nullptr) nodes.trees[nodes.count] = static_cast<int32_t>(tree);
    ++nodes.count;
  }

  /// All threads fill slots; one thread appends in order, while the sources are in its cache.
  void sample_in_turn(const RelationSpec& relation, const Hop& hop, NodeList& sources,
                      int64_t pieces) {
    const auto begin = [](int64_t chunk) { return chunk * kTargetsAtATime; };
    const auto end = [&](int64_t chunk) { return std::min(begin(chunk + 1), hop.num_targets); };
    OrderedChunks chunks((hop.num_targets + kTargetsAtATime - 1) / kTargetsAtATime);
    workers_.run_pieces(pieces, [&](int64_t piece) {
      DrawScratch scratch;
      const auto fill = [&](int64_t chunk) {
        fill_slots(relation, hop, begin(chunk), end(chunk), scratch);
      };
      if (piece > 0) return chunks.produce(fill);
      chunks.consume(
          fill, [&](int64_t chunk) { append_in_turn(hop, sources, begin(chunk), end(chunk)); });
    });
  }

  /// All threads fill slots, claim nodes and append, as on the GPU.
  void sample_by_claims(const RelationSpec& relation, const Hop& hop, NodeList& sources,
                        int64_t pieces) {
    workers_.run(hop.num_targets, kTargetsPerThread, [&](int64_t first, int64_t last) {
      DrawScratch scratch;
      for (int64_t begin = first; begin < last; begin += kTargetsAtATime) {
        const int64_t end = std::min(begin + kTargetsAtATime, last);
        fill_slots(relation, hop, begin, end, scratch);
        claim_slots(hop, sources.index, begin, end);
      }
    });
    append_claimed(hop, sources, pieces, workers_);
  }

  void fill_slots(const RelationSpec& relation, const Hop& hop, int64_t begin, int64_t end,
                  DrawScratch& scratch) const {
    if (relation.visits)
      most_visited_.fill_slots(hop, begin, end);
    else if (relation.choice.is_uniform_without_replacement())
      sample_neighbors_cpu(relation.csc, hop, lists_.get(), begin, end, scratch);
    else
      choose_neighbors_cpu(relation.csc, relation.choice, hop, lists_.get(), times_, begin, end,
                           scratch);
  }

  const int num_threads_;
  Workers workers_;
  // Of the hop that was counted last.
  std::unique_ptr<Neighbors[]> lists_;  // [num_lists_], of the targets and unused ones
  int64_t num_lists_ = 0;
  ListTimes times_;
  MostVisited most_visited_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int num_threads) {
  return std::make_unique<CpuBackend>(num_threads);
}

std::unique_ptr<Backend> make_backend([[maybe_unused]] const SamplerSpec& spec,
                                      const Launch& launch, [[maybe_unused]] int64_t* mailbox,
                                      [[maybe_unused]] Arena& arena) {
  PG_ON_DEVICE(launch.device, return make_cpu_backend(launch.num_threads),
               return make_cuda_backend(launch.device, launch.stream, spec.relations_on_device,
                                        mailbox, arena));
}

}  // namespace peergraph
