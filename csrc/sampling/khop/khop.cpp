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
class KHop : private SampleMemory {
 public:
  KHop(const SamplerSpec& spec, uint64_t seed, const int64_t* seed_times,
       const std::vector<NodeMap*>& maps, const Allocate& allocate, Arena& arena, Backend& backend)
      : SampleMemory(allocate, arena),
        spec_(spec),
        seed_(seed),
        seed_times_(seed_times),
        maps_(maps),
        backend_(backend),
        lists_(spec.node_types.size()) {
    result_.nodes.resize(spec.node_types.size());
    result_.edges.resize(spec.relations.size());
    hops_.reserve(static_cast<size_t>(spec.num_hops) * spec.relations.size());
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
      result_.nodes[type].per_hop.push_back(lists_[type].count);
  }

  void run_hops() {
    std::vector<int64_t> begin(lists_.size(), 0), end(lists_.size());
    for (int hop = 0; hop < spec_.num_hops; ++hop) {
      for (size_t type = 0; type < lists_.size(); ++type) end[type] = lists_[type].count;
      for (size_t r = 0; r < spec_.relations.size(); ++r) {
        const int destination = spec_.relations[r].destination;
        const int64_t first = spec_.expand_all ? 0 : begin[destination];
        hops_.push_back(sample_hop(hop, static_cast<int>(r), first, end[destination] - first));
        result_.edges[r].per_hop.push_back(hops_.back().num_edges);
      }
      for (size_t type = 0; type < lists_.size(); ++type)
        result_.nodes[type].per_hop.push_back(lists_[type].count - end[type]);
      begin = end;
    }
  }

  /// Replaces the sampled edges by all edges among the sampled nodes.
  void induce() {
    hops_.clear();
    for (size_t r = 0; r < spec_.relations.size(); ++r) {
      hops_.push_back(induced_hop(spec_.relations[r]));
      result_.edges[r].per_hop = {hops_.back().num_edges};
    }
  }

  SampleResult finish() {
    for (size_t type = 0; type < lists_.size(); ++type) allocate_nodes(type);
    for (size_t r = 0; r < spec_.relations.size(); ++r) write_edges(r);
    for (size_t type = 0; type < lists_.size(); ++type)
      if (lists_[type].count > 0)
        backend_.write_nodes(spec_.node_types[type], lists_[type], result_.nodes[type]);
    for (const Hop& hop : hops_)
      result_.blocks.push_back({hop.offsets, hop.first_target, hop.num_targets});
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
      std::vector<int64_t> found(lists_.size(), 0);
      for (const RelationSpec& relation : spec_.relations) {
        const int64_t fanout = draws_per_target(relation, relation.fanouts[hop]);
        int64_t& sources = found[relation.source];
        sources += targets[relation.destination] * fanout;
        if (fanout < 0 || sources > kFewRows) return;
        if (!spec_.disjoint)
          sources = std::min(sources, spec_.node_types[relation.source].num_nodes);
      }
      for (size_t type = 0; type < rows.size(); ++type) rows[type] += found[type];
      targets = spec_.expand_all ? rows : found;
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
    const int64_t wanted = list.count + extra;
    grow(list, wanted);
    const bool is_empty =
        spec_.disjoint ? renew_table(list, wanted) : renew_map(type, wanted, slots);
    if (is_empty && list.count > 0) backend_.reindex(list);
  }

  /// Gives the index of a disjoint sample a larger hash table if needed; returns whether it
  /// did.
  bool renew_table(NodeList& list, int64_t nodes) {
    const uint64_t capacity = list.index.keys == nullptr ? 0 : list.index.mask + 1;
    if (static_cast<uint64_t>(2 * nodes) <= capacity) return false;
    const int64_t size = hash_table_size(nodes);
    list.index.keys = scratch<uint64_t>(size);
    list.index.values = scratch<uint32_t>(size);
    list.index.mask = static_cast<uint64_t>(size - 1);
    backend_.fill(list.index.keys, 0xFF, size * sizeof(uint64_t));
    backend_.fill(list.index.values, 0xFF, size * sizeof(uint32_t));
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
    const int64_t found = lists_[type].count - result_.nodes[type].per_hop.front();
    return std::min(slots, spec_.node_types[type].num_nodes - found);
  }

  /// Prepares a hop by a relation from `num_targets` nodes; returns whether there is anything
  /// to sample.
  bool set_up(Hop& hop, const RelationSpec& relation, int64_t first_target, int64_t num_targets) {
    hop.first_target = first_target;
    hop.num_targets = num_targets;
    hop.index_bytes = relation.csc.index_bytes;
    hop.offsets = allocate<int64_t>(num_targets + 2);
    if (num_targets == 0 || hop.fanout == 0 || relation.csc.num_edges == 0) {
      backend_.fill(hop.offsets, 0, (num_targets + 2) * sizeof(int64_t));
      return false;
    }
    // The list may be reallocated when it grows; its old memory stays valid until the sample
    // ends.
    const NodeList& destinations = lists_[relation.destination];
    hop.targets = destinations.ids + first_target;
    if (spec_.disjoint) hop.target_trees = destinations.trees + first_target;
    if (relation.choice.timed()) {
      PG_CHECK_ARG(spec_.disjoint && seed_times_ != nullptr,
                   "choosing by time needs a disjoint sample and a time for each seed");
      hop.seed_times = seed_times_;
    }
    return true;
  }

  void allocate_slots(Hop& hop, const std::string& name, bool edge_ids) {
    PG_CHECK_ARG(hop.slots <= kMaxSampleRows, name + " would sample " + std::to_string(hop.slots) +
                                                  " edges of one relation; at most " +
                                                  std::to_string(kMaxSampleRows) +
                                                  " are possible: use fewer seeds or fanouts");
    hop.sources = scratch<char>(hop.slots, hop.index_bytes);
    if (edge_ids) hop.edge_ids = scratch<int64_t>(hop.slots);
  }

  Hop sample_hop(int hop_number, int r, int64_t first_target, int64_t num_targets) {
    const RelationSpec& relation = spec_.relations[r];
    Hop hop;
    hop.random = {seed_, static_cast<uint64_t>(hop_number) * spec_.relations.size() + r};
    hop.fanout = draws_per_target(relation, relation.fanouts[hop_number]);
    hop.looked_up_later = spec_.looks_up_later(hop_number, static_cast<size_t>(r));
    if (!set_up(hop, relation, first_target, num_targets)) return hop;

    backend_.plan(relation, hop);
    allocate_slots(hop, "hop " + std::to_string(hop_number), spec_.edge_ids && !spec_.induced);
    NodeList& sources = lists_[relation.source];
    reserve(relation.source, max_new_nodes(relation.source, hop.slots), hop.slots);
    if (hop.slots > 0) backend_.sample_neighbors(relation, hop, sources);
    PG_CHECK_ARG(sources.count < kMaxSampleRows, "the sample has too many nodes of type '" +
                                                     spec_.node_types[relation.source].name +
                                                     "': use fewer seeds or fanouts");
    return hop;
  }

  Hop induced_hop(const RelationSpec& relation) {
    const NodeList& sources = lists_[relation.source];
    Hop hop;
    hop.fanout = sources.count == 0 ? 0 : -1;
    if (!set_up(hop, relation, 0, lists_[relation.destination].count)) return hop;
    backend_.plan_induced(relation, hop, sources.index);
    allocate_slots(hop, "the induced subgraph", spec_.edge_ids);
    if (hop.slots > 0) backend_.induce(relation, hop, sources.index);
    hop.num_edges = hop.slots;
    return hop;
  }

  void allocate_nodes(size_t type) {
    NodesResult& nodes = result_.nodes[type];
    const int64_t count = lists_[type].count;
    nodes.ids = allocate<int64_t>(count);
    if (spec_.disjoint) nodes.batch = allocate<int64_t>(count);
    if (spec_.duplicate_counts && count > 0) {
      nodes.duplicates = allocate<int32_t>(count);
      backend_.fill(nodes.duplicates, 0, count * sizeof(int32_t));
    }
  }

  void write_edges(size_t r) {
    EdgesResult& edges = result_.edges[r];
    int64_t total = 0;
    for (int64_t count : edges.per_hop) total += count;
    edges.row = allocate<char>(total, spec_.index_bytes);
    edges.col = allocate<char>(total, spec_.index_bytes);
    if (spec_.edge_ids) edges.ids = allocate<int64_t>(total);
    EdgeOutput out;
    out.row = edges.row;
    out.col = edges.col;
    out.edge_ids = edges.ids;
    out.duplicates = result_.nodes[spec_.relations[r].source].duplicates;
    out.index_bytes = spec_.index_bytes;
    for (size_t h = 0; h < edges.per_hop.size(); ++h) {
      const Hop& hop = hops_[h * spec_.relations.size() + r];
      if (hop.num_edges > 0) backend_.write_edges(hop, out);
      out.begin += hop.num_edges;
    }
  }

  static constexpr int64_t kFewRows = int64_t{1} << 21;

  const SamplerSpec& spec_;
  const uint64_t seed_;
  const int64_t* const seed_times_;
  const std::vector<NodeMap*>& maps_;
  Backend& backend_;
  const NodeMap::Clear clear_ = [this](void* words, int64_t num_bytes) {
    backend_.fill(words, 0xFF, num_bytes);
  };
  std::vector<NodeList> lists_;
  std::vector<Hop> hops_;
  SampleResult result_;
};

}  // namespace

void throw_bad_seed(const NodeTypeSpec& type, int64_t position, int64_t id) {
  throw std::out_of_range(bad_id_message(BadId::kSeed, position, id, type.num_nodes) +
                          " of type '" + type.name + "'");
}

SampleResult sample_khop(const SamplerSpec& spec, const std::vector<SeedList>& seeds, uint64_t seed,
                         const int64_t* seed_times, const std::vector<NodeMap*>& maps,
                         const Allocate& allocate, Arena& arena, Backend& backend) {
  KHop sample(spec, seed, seed_times, maps, allocate, arena, backend);
  sample.add_seeds(seeds);
  sample.run_hops();
  if (spec.induced) sample.induce();
  return sample.finish();
}

}  // namespace peergraph
