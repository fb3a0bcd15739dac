#include "sampling/khop/khop.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "common/check.h"
#include "memory/bad_id.h"
#include "sampling/khop/capacity.h"

namespace peergraph {
namespace {

/// One call of sample_khop.
class KHop : private ScratchMemory {
 public:
  KHop(const SamplerSpec& spec, uint64_t seed, const SeedTimes& seed_times,
       const std::vector<NodeMap*>& maps, Arena& arena, Backend& backend)
      : ScratchMemory(arena),
        spec_(spec),
        seed_(seed),
        seed_times_(seed_times),
        maps_(maps),
        backend_(backend),
        lists_(spec.node_types.size()) {
    result_.num_nodes.resize(spec.node_types.size());
    for (auto* counts : {&result_.num_edges, &result_.first_target, &result_.num_targets})
      counts->resize(spec.relations.size());
    // Tasks point to hops.
    hops_.reserve(static_cast<size_t>(std::max(1, spec.num_hops)) * spec.relations.size());
  }

  void add_seeds(const std::vector<SeedList>& seeds) {
    int64_t num_trees = 0;
    for (const SeedList& s : seeds) num_trees += s.count;
    PG_CHECK_ARG(num_trees < kMaxSampleRows, "seeds: too many, " + std::to_string(num_trees));
    for (size_t type = 0; type < lists_.size(); ++type) {
      if (spec_.disjoint) {
        lists_[type].index.node_bits = disjoint_key_bits(spec_.node_types[type], num_trees);
      } else {
        maps_[type]->begin(clear_);
        lists_[type].index = maps_[type]->index();
      }
    }
    reserve_all(seeds);
    int64_t first_tree = 0;
    for (const SeedList& s : seeds) {
      NodeList& list = lists_[s.node_type];
      reserve(s.node_type, s.count, 0);
      if (s.count > 0) backend_.add_seeds(spec_.node_types[s.node_type], s, first_tree, list);
      first_tree += s.count;
    }
    for (size_t type = 0; type < lists_.size(); ++type)
      result_.num_nodes[type].push_back(lists_[type].count);
  }

  void run_hops() {
    std::vector<int64_t> begin(lists_.size(), 0), end(lists_.size());
    for (int hop = 0; hop < spec_.num_hops; ++hop) {
      for (size_t type = 0; type < lists_.size(); ++type) end[type] = lists_[type].count;
      for (size_t r = 0; r < spec_.relations.size(); ++r) {
        const int destination = spec_.relations[r].destination;
        const int64_t first = spec_.expand_all ? 0 : begin[destination];
        hops_.push_back(make_hop(hop, r, first, end[destination] - first));
      }
      sample_hop(hop);
      for (size_t type = 0; type < lists_.size(); ++type)
        result_.num_nodes[type].push_back(lists_[type].count - end[type]);
      begin = end;
    }
  }

  /// Replaces the sampled edges by all edges among the sampled nodes.
  void induce() {
    hops_.clear();
    offsets_.clear();
    for (auto* counts : {&result_.num_edges, &result_.first_target, &result_.num_targets})
      for (auto& of_relation : *counts) of_relation.clear();
    for (const RelationSpec& relation : spec_.relations) {
      Hop hop;
      hop.fanout = lists_[relation.source].count == 0 ? 0 : -1;
      hop.num_targets = lists_[relation.destination].count;
      hops_.push_back(hop);
    }
    std::vector<HopTask> tasks = prepare_tasks();
    const MakeRoom make_room = [this](const HopTask* room_for, size_t count) {
      allocate_slots(room_for, count, "the induced subgraph", spec_.edge_ids);
    };
    if (!tasks.empty()) backend_.induce(tasks, make_room);
    record_hops();
  }

  SampleResult finish(const AllocateResult& allocate) {
    ResultSizes sizes;
    for (const NodeList& list : lists_) sizes.nodes += list.count;
    for (const Hop& hop : hops_) sizes.edges += hop.num_edges;
    for (const auto& of_hop : offsets_) sizes.offsets += of_hop.count;
    write_offsets(allocate(sizes, result_));
    const std::vector<NodesOutput> nodes = nodes_by_type(sizes.nodes);
    write_edges(nodes);
    std::vector<NodesWrite> writes;
    for (size_t type = 0; type < lists_.size(); ++type)
      if (lists_[type].count > 0)
        writes.push_back({&spec_.node_types[type], &lists_[type], nodes[type]});
    backend_.write_nodes(writes);
    backend_.finish();
    return std::move(result_);
  }

 private:
  /// Allocates node lists for the largest possible sample if that is small, so that lists
  /// need not grow and be copied from hop to hop.
  void reserve_all(const std::vector<SeedList>& seeds) {
    std::vector<int64_t> rows(lists_.size(), 0);
    for (const SeedList& s : seeds) rows[s.node_type] += s.count;
    std::vector<int64_t> targets = rows;
    for (int hop = 0; hop < spec_.num_hops; ++hop) {
      std::vector<int64_t> new_rows(lists_.size(), 0);
      for (const RelationSpec& relation : spec_.relations) {
        const int64_t fanout = draws_per_target(relation, relation.fanouts[hop]);
        int64_t& sources = new_rows[relation.source];
        sources += targets[relation.destination] * fanout;
        if (fanout < 0 || sources > kFewRows) return;
        if (!spec_.disjoint)
          sources = std::min(sources, spec_.node_types[relation.source].num_nodes);
      }
      for (size_t type = 0; type < rows.size(); ++type) rows[type] += new_rows[type];
      targets = spec_.expand_all ? rows : new_rows;
      if (*std::max_element(rows.begin(), rows.end()) > kFewRows) return;
    }
    for (size_t type = 0; type < rows.size(); ++type) grow(lists_[type], rows[type]);
  }

  void grow(NodeList& list, int64_t capacity) {
    if (capacity <= list.capacity) return;
    NodeList grown = list;
    grown.capacity = std::max(capacity, list.capacity + list.capacity / 2);
    grown.ids = scratch<int64_t>(grown.capacity +
                                 1);  // one more: the CPU writes an id before it counts the id
    if (list.count > 0) backend_.copy(grown.ids, list.ids, list.count * sizeof(int64_t));
    if (spec_.disjoint) {
      grown.trees = scratch<int32_t>(grown.capacity);
      if (list.count > 0) backend_.copy(grown.trees, list.trees, list.count * sizeof(int32_t));
    }
    list = grown;
  }

  /// Makes room for `extra` more nodes in the list and in its index, and for `slots` claims
  /// in the index.
  void reserve(int type, int64_t extra, int64_t slots) {
    NodeList& list = lists_[type];
    const int64_t capacity = list.count + extra;
    grow(list, capacity);
    const bool is_empty =
        spec_.disjoint ? renew_table(list, capacity) : renew_map(type, capacity, slots);
    if (is_empty && list.count > 0) backend_.reindex(list);
  }

  /// Gives the index of a disjoint sample a larger hash table if needed; returns whether it
  /// did.
  bool renew_table(NodeList& list, int64_t nodes) {
    const uint64_t capacity = list.index.keys == nullptr ? 0 : list.index.mask + 1;
    if (static_cast<uint64_t>(2 * nodes) <= capacity) return false;
    const int64_t size = hash_table_size(nodes);
    // Keys and values are of one piece, which is filled at once.
    constexpr int64_t kEntryBytes = sizeof(uint64_t) + sizeof(uint32_t);
    list.index.keys = scratch<uint64_t>(size, kEntryBytes);
    list.index.values = reinterpret_cast<uint32_t*>(list.index.keys + size);
    list.index.mask = static_cast<uint64_t>(size - 1);
    backend_.fill(list.index.keys, 0xFF, size * kEntryBytes);
    return true;
  }

  /// Gives the words of a direct map more bits if needed; returns whether it did.
  bool renew_map(int type, int64_t nodes, int64_t slots) {
    if (!maps_[type]->make_room(nodes, slots, clear_)) return false;
    lists_[type].index = maps_[type]->index();
    return true;
  }

  /// An upper bound for the new nodes that `slots` edges can lead to.
  int64_t max_new_nodes(int type, int64_t slots) const {
    if (spec_.disjoint) return slots;
    const int64_t num_new = lists_[type].count - result_.num_nodes[type].front();
    return std::min(slots, spec_.node_types[type].num_nodes - num_new);
  }

  Hop make_hop(int hop_number, size_t r, int64_t first_target, int64_t num_targets) const {
    const RelationSpec& relation = spec_.relations[r];
    Hop hop;
    hop.random = {seed_, static_cast<uint64_t>(hop_number) * spec_.relations.size() + r};
    hop.fanout = draws_per_target(relation, relation.fanouts[hop_number]);
    hop.looked_up_later = spec_.looks_up_later(hop_number, r);
    hop.first_target = first_target;
    hop.num_targets = num_targets;
    return hop;
  }

  /// The hop by each relation that was made last.
  Hop* last_hops() { return hops_.data() + hops_.size() - spec_.relations.size(); }

  /// Gives the last hops their offsets, and those with anything to sample their targets. Returns
  /// these; the offsets of the others are 0.
  std::vector<HopTask> prepare_tasks() {
    Hop* const hops = last_hops();
    int64_t total = 0;
    for (size_t r = 0; r < spec_.relations.size(); ++r) total += hops[r].num_targets + 1;
    int64_t* const offsets = scratch<int64_t>(total);
    offsets_.push_back({offsets, total});
    std::vector<HopTask> tasks;
    std::vector<std::pair<int64_t, int64_t>> idle;  // the offsets between those of the tasks
    int64_t begin = 0, idle_from = 0;
    for (size_t r = 0; r < spec_.relations.size(); ++r) {
      const RelationSpec& relation = spec_.relations[r];
      Hop& hop = hops[r];
      hop.offsets = offsets + begin;
      const int64_t end = begin + hop.num_targets + 1;
      if (hop.num_targets > 0 && hop.fanout != 0 && relation.csc.num_edges > 0) {
        if (begin > idle_from) idle.emplace_back(idle_from, begin);
        idle_from = end;
        set_targets(hop, relation);
        tasks.push_back({static_cast<int32_t>(r), &relation, &hop, &lists_[relation.source]});
      }
      begin = end;
    }
    if (total > idle_from) idle.emplace_back(idle_from, total);
    if (idle.size() > kFewFills) idle = {{0, total}};
    for (const auto& [from, to] : idle)
      backend_.fill(offsets + from, 0, (to - from) * sizeof(int64_t));
    return tasks;
  }

  void set_targets(Hop& hop, const RelationSpec& relation) {
    hop.index_bytes = relation.csc.index_bytes;
    // The list may be reallocated when it grows; its old memory stays valid until the sample
    // ends.
    const NodeList& destinations = lists_[relation.destination];
    hop.targets = destinations.ids + hop.first_target;
    if (spec_.disjoint) hop.target_trees = destinations.trees + hop.first_target;
    if (!relation.choice.timed()) return;
    PG_CHECK_ARG(spec_.disjoint && seed_times_.last != nullptr,
                 "choosing by time needs a disjoint sample and a time for each seed");
    hop.seed_times = seed_times_;
  }

  void sample_hop(int hop_number) {
    std::vector<HopTask> tasks = prepare_tasks();
    const MakeRoom make_room = [&](const HopTask* room_for, size_t count) {
      allocate_slots(room_for, count, "hop " + std::to_string(hop_number),
                     spec_.edge_ids && !spec_.induced);
      reserve_for(room_for, count);
    };
    if (!tasks.empty()) backend_.sample_neighbors(tasks, make_room);
    for (const HopTask& task : tasks)
      PG_CHECK_ARG(task.sources->count < kMaxSampleRows,
                   "the sample has too many nodes of type '" +
                       spec_.node_types[task.relation->source].name +
                       "': use fewer seeds or fanouts");
    record_hops();
  }

  void record_hops() {
    const Hop* const hops = last_hops();
    for (size_t r = 0; r < spec_.relations.size(); ++r) {
      result_.num_edges[r].push_back(hops[r].num_edges);
      result_.first_target[r].push_back(hops[r].first_target);
      result_.num_targets[r].push_back(hops[r].num_targets);
    }
  }

  void allocate_slots(const HopTask* tasks, size_t count, const std::string& name, bool edge_ids) {
    int64_t total = 0;
    for (size_t i = 0; i < count; ++i) {
      const Hop& hop = *tasks[i].hop;
      PG_CHECK_ARG(hop.slots_before + hop.slots <= kMaxSampleRows,
                   name + " would sample " + std::to_string(hop.slots_before + hop.slots) +
                       " edges at once; at most " + std::to_string(kMaxSampleRows) +
                       " are possible: use fewer seeds or fanouts");
      total += hop.slots;
    }
    if (total == 0) return;
    const int32_t index_bytes = tasks[0].hop->index_bytes;
    char* sources = scratch<char>(total, index_bytes);
    int64_t* ids = edge_ids ? scratch<int64_t>(total) : nullptr;
    for (size_t i = 0; i < count; ++i) {
      Hop& hop = *tasks[i].hop;
      hop.sources = sources;
      sources += hop.slots * index_bytes;
      if (!edge_ids) continue;
      hop.edge_ids = ids;
      ids += hop.slots;
    }
  }

  /// Makes room for the new nodes of hops, those by relations of the same source after each other.
  void reserve_for(const HopTask* tasks, size_t count) {
    for (size_t begin = 0, end = 0; begin < count; begin = end) {
      const int type = tasks[begin].relation->source;
      int64_t slots = 0;
      for (; end < count && tasks[end].relation->source == type; ++end)
        slots += tasks[end].hop->slots;
      reserve(type, max_new_nodes(type, slots), slots);
    }
  }

  /// Copies the offsets of all hops to the result.
  void write_offsets(int64_t* to) {
    for (const OffsetsOfHop& of_hop : offsets_) {
      result_.offsets.push_back(of_hop.count == 0 ? nullptr : to);
      if (of_hop.count == 0) continue;
      backend_.copy(to, of_hop.begin, of_hop.count * sizeof(int64_t));
      to += of_hop.count;
    }
  }

  /// Returns the nodes of each type in the result, which has `total` nodes.
  std::vector<NodesOutput> nodes_by_type(int64_t total) {
    NodesOutput next = result_.nodes;
    if (next.duplicates != nullptr) backend_.fill(next.duplicates, 0, total * sizeof(int32_t));
    std::vector<NodesOutput> of_type;
    for (const NodeList& list : lists_) {
      of_type.push_back(next);
      if (total == 0) continue;
      next.ids += list.count;
      if (next.batch != nullptr) next.batch += list.count;
      if (next.duplicates != nullptr) next.duplicates += list.count;
    }
    return of_type;
  }

  void write_edges(const std::vector<NodesOutput>& nodes) {
    const size_t relations = spec_.relations.size();
    std::vector<HopTask> tasks;
    std::vector<EdgeOutput> outputs;
    int64_t before = 0;
    for (size_t r = 0; r < relations; ++r) {
      const int source = spec_.relations[r].source;
      int64_t edges = 0;
      for (int64_t count : result_.num_edges[r]) edges += count;
      EdgeOutput out;
      out.index_bytes = spec_.index_bytes;
      out.row = static_cast<char*>(result_.edge_index) + 2 * before * spec_.index_bytes;
      out.col = static_cast<char*>(out.row) + edges * spec_.index_bytes;
      out.edge_ids = spec_.edge_ids ? result_.edge_ids + before : nullptr;
      out.duplicates = nodes[source].duplicates;
      for (size_t at = r; at < hops_.size(); at += relations) {
        Hop& hop = hops_[at];
        if (hop.num_edges == 0) continue;
        tasks.push_back({static_cast<int32_t>(r), &spec_.relations[r], &hop, &lists_[source]});
        outputs.push_back(out);
        out.begin += hop.num_edges;
      }
      before += edges;
    }
    if (!tasks.empty()) backend_.write_edges(tasks, outputs);
  }

  /// The offsets of a hop by all relations, in scratch memory: their number is known before that of
  /// other results.
  struct OffsetsOfHop {
    const int64_t* begin;
    int64_t count;
  };

  static constexpr int64_t kFewRows = int64_t{1} << 21;
  static constexpr size_t kFewFills = 4;

  const SamplerSpec& spec_;
  const uint64_t seed_;
  const SeedTimes seed_times_;
  const std::vector<NodeMap*>& maps_;
  Backend& backend_;
  const NodeMap::Clear clear_ = [this](void* words, int64_t num_bytes) {
    backend_.fill(words, 0xFF, num_bytes);
  };
  std::vector<NodeList> lists_;
  std::vector<Hop> hops_;
  std::vector<OffsetsOfHop> offsets_;
  SampleResult result_;
};

}  // namespace

void throw_bad_seed(const NodeTypeSpec& type, int64_t position, int64_t id) {
  throw std::out_of_range(bad_id_message(BadId::kSeed, position, id, type.num_nodes) +
                          " of type '" + type.name + "'");
}

SampleResult sample_khop(const SamplerSpec& spec, const std::vector<SeedList>& seeds, uint64_t seed,
                         const SeedTimes& seed_times, const std::vector<NodeMap*>& maps,
                         const AllocateResult& allocate, Arena& arena, Backend& backend) {
  KHop sample(spec, seed, seed_times, maps, arena, backend);
  sample.add_seeds(seeds);
  sample.run_hops();
  if (spec.induced) sample.induce();
  return sample.finish(allocate);
}

}  // namespace peergraph
