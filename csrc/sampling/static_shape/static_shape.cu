#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "common/check.h"
#include "common/cuda_check.cuh"
#include "sampling/append_unique/append_unique.h"
#include "sampling/khop/capacity.h"
#include "sampling/khop/write_sample.h"
#include "sampling/neighbor/neighbor.h"
#include "sampling/static_shape/static_shape.h"
#include "sampling/static_shape/static_shape_kernels.h"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

/// One call of sample_static_shape_cuda.
class StaticShapeKHop : private SampleMemory {
 public:
  StaticShapeKHop(const SamplerSpec& spec, const StaticShapeBounds& bounds, bool valid_padding,
                  const Allocate& allocator, Arena& arena, int device, uintptr_t stream)
      : SampleMemory(allocator, arena),
        spec_(spec),
        bounds_(bounds),
        valid_padding_(valid_padding),
        device_(device),
        stream_(stream),
        guard_(device),
        lists_(spec.node_types.size()),
        segments_(spec.node_types.size()) {
    PG_CHECK_ARG(spec.num_hops < kMaxSegments, "fanouts: too many hops for a static shape");
    const auto num_counts = static_cast<int64_t>(spec.node_types.size() * (spec.num_hops + 1) +
                                                 spec.relations.size() * spec.num_hops);
    result_.counts = allocate<int64_t>(std::max<int64_t>(1, num_counts));
    fill(result_.counts, 0, num_counts * sizeof(int64_t));
    result_.padded.first_target.resize(spec.relations.size());
    result_.padded.num_targets.resize(spec.relations.size());
  }

  void add_seeds(const std::vector<PaddedSeeds>& seeds, const std::vector<uint32_t*>& direct) {
    std::vector<int64_t> capacity(lists_.size(), 0);
    int64_t num_trees = 0;
    for (const PaddedSeeds& s : seeds) {
      capacity[s.node_type] += s.capacity;
      num_trees += s.capacity;
    }
    // The size of a hash table depends on the number of targets of all types.
    for (size_t type = 0; type < lists_.size(); ++type) make_segments(type, capacity[type]);
    allocate_nodes();
    for (size_t type = 0; type < lists_.size(); ++type) make_list(type, num_trees, direct);
    int64_t first_tree = 0;
    for (const PaddedSeeds& s : seeds) {
      if (s.capacity > 0)
        add_padded_seeds_cuda(spec_.node_types[s.node_type], s, first_tree, lists_[s.node_type],
                              node_count(s.node_type, 0), device_, stream_);
      first_tree += s.capacity;
    }
  }

  void run_hops(uint64_t seed, const uint64_t* seed_at, const SeedTimes& seed_times) {
    allocate_edges();
    for (int hop = 0; hop < spec_.num_hops; ++hop) {
      allocate_offsets(hop);
      std::vector<int32_t*> positions(lists_.size(), nullptr);
      for (size_t type = 0; spec_.expand_all && type < lists_.size(); ++type)
        positions[type] = positions_of(type, hop);
      for (int r = 0; r < static_cast<int>(spec_.relations.size()); ++r) {
        Hop draws;
        draws.random = {seed, static_cast<uint64_t>(hop) * spec_.relations.size() + r, seed_at};
        draws.seed_times = seed_times;
        draws.positions = positions[spec_.relations[r].destination];
        sample_hop(hop, r, draws);
      }
    }
  }

  StaticShapeResult finish() {
    std::vector<NodesWrite> writes;
    for (size_t type = 0; type < lists_.size(); ++type)
      writes.push_back({&spec_.node_types[type], &lists_[type], nodes_[type]});
    write_nodes_cuda(writes, valid_padding_, arena_, stream_);
    return std::move(result_);
  }

 private:
  void fill(void* to, int byte, int64_t num_bytes) {
    PG_CUDA_CHECK(cudaMemsetAsync(to, byte, static_cast<size_t>(num_bytes),
                                  reinterpret_cast<cudaStream_t>(stream_)));
  }

  int64_t* node_count(size_t type, int segment) {
    return result_.counts + type * (spec_.num_hops + 1) + segment;
  }

  int64_t* edge_count(size_t relation, int hop) {
    return result_.counts + spec_.node_types.size() * (spec_.num_hops + 1) +
           relation * spec_.num_hops + hop;
  }

  int64_t rows(size_t type) const { return segments_[type].begin[spec_.num_hops + 1]; }
  int64_t padding_row(size_t type) const { return segments_[type].begin[1] - 1; }

  /// The seeds and the padding row, then the new nodes of each hop.
  void make_segments(size_t type, int64_t seeds) {
    Segments& segments = segments_[type];
    segments.counts = node_count(type, 0);
    segments.num_segments = spec_.num_hops + 1;
    segments.begin[1] = seeds + 1;
    for (int hop = 0; hop < spec_.num_hops; ++hop)
      segments.begin[hop + 2] = segments.begin[hop + 1] + bounds_.nodes[type][hop];
  }

  void allocate_nodes() {
    int64_t total = 0;
    for (size_t type = 0; type < lists_.size(); ++type) total += rows(type);
    NodesOutput next;
    next.ids = allocate<int64_t>(total);
    if (spec_.disjoint) next.batch = allocate<int64_t>(total);
    if (spec_.duplicate_counts) {
      next.duplicates = allocate<int32_t>(total);
      fill(next.duplicates, 0, total * sizeof(int32_t));
    }
    result_.padded.nodes = next;
    for (size_t type = 0; type < lists_.size(); ++type) {
      nodes_.push_back(next);
      next.ids += rows(type);
      if (spec_.disjoint) next.batch += rows(type);
      if (spec_.duplicate_counts) next.duplicates += rows(type);
    }
  }

  void make_list(size_t type, int64_t num_trees, const std::vector<uint32_t*>& direct) {
    NodeList& list = lists_[type];
    list.count = list.capacity = rows(type);
    list.ids = scratch<int64_t>(rows(type));
    fill(list.ids, 0xFF, rows(type) * sizeof(int64_t));
    if (spec_.disjoint) {
      list.trees = scratch<int32_t>(rows(type));
      fill(list.trees, 0xFF, rows(type) * sizeof(int32_t));
      list.index = hash_index(type, num_trees);
    } else {
      list.index = direct_index(type, direct[type]);
    }
  }

  /// A direct map in which no word belongs to this sample. The base of its words is on the device:
  /// a captured CUDA graph replays the same launches.
  NodeIndex direct_index(size_t type, uint32_t* words) {
    int64_t claims = 0;
    for (int64_t slots : slots_of_claims(type)) claims = std::max(claims, slots);
    const int64_t num_nodes = spec_.node_types[type].num_nodes;
    NodeIndex index;
    index.direct = words;
    index.base_at = words + num_nodes;
    index.first_claim = static_cast<uint32_t>(rows(type));
    lower_base_cuda(words, num_nodes, static_cast<uint32_t>(rows(type) + claims), stream_);
    return index;
  }

  /// The slots of all hops and relations whose sources are of a type.
  std::vector<int64_t> slots_of_claims(size_t type) const {
    std::vector<int64_t> slots;
    for (int hop = 0; hop < spec_.num_hops; ++hop)
      for (size_t r = 0; r < spec_.relations.size(); ++r)
        if (spec_.relations[r].source == static_cast<int>(type))
          slots.push_back(slots_of(hop, static_cast<int>(r)).slots);
    return slots;
  }

  /// An empty hash table with capacity for all claims, even if a bound turns out to be too
  /// small.
  NodeIndex hash_index(size_t type, int64_t num_trees) {
    int64_t keys = segments_[type].begin[1];
    for (int64_t slots : slots_of_claims(type)) keys += slots;
    NodeIndex index;
    index.node_bits = disjoint_key_bits(spec_.node_types[type], num_trees);
    const int64_t size = hash_table_size(keys);
    index.keys = scratch<uint64_t>(size);
    index.values = scratch<uint32_t>(size);
    index.mask = static_cast<uint64_t>(size - 1);
    fill(index.keys, 0xFF, size * sizeof(uint64_t));
    fill(index.values, 0xFF, size * sizeof(uint32_t));
    return index;
  }

  int32_t* positions_of(size_t type, int hop) {
    Segments so_far = segments_[type];
    so_far.num_segments = hop + 1;
    auto* positions = scratch<int32_t>(so_far.begin[hop + 1]);
    write_positions_cuda(so_far, positions, stream_);
    return positions;
  }

  int64_t first_target(int hop, int r) const {
    return spec_.expand_all ? 0 : segments_[spec_.relations[r].destination].begin[hop];
  }
  int64_t num_targets(int hop, int r) const {
    return segments_[spec_.relations[r].destination].begin[hop + 1] - first_target(hop, r);
  }

  struct Slots {
    int64_t fanout, stride, slots;
  };

  /// The layout of the slots as in other samples; if that would need the number of edges on
  /// the host, there are as many slots as the bound on edges. Without slots there is nothing
  /// to do, and nothing to report.
  Slots slots_of(int hop, int r) const {
    const RelationSpec& relation = spec_.relations[r];
    const int64_t fanout = draws_per_target(relation, relation.fanouts[hop]);
    const int64_t targets = num_targets(hop, r);
    if (targets == 0 || fanout == 0 || relation.csc.num_edges == 0) return {fanout, 0, 0};
    if (reserves_by_fanout(targets, fanout)) return {fanout, fanout, targets * fanout};
    return {fanout, 0, std::max<int64_t>(1, bounds_.edges[r][hop])};
  }

  static int64_t sum(const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  }

  void allocate_edges() {
    int64_t total = 0;
    for (const auto& of_relation : bounds_.edges) {
      edges_before_.push_back(total);
      total += sum(of_relation);
    }
    result_.padded.edge_index = allocate<char>(2 * total, spec_.index_bytes);
    if (spec_.edge_ids) result_.padded.edge_ids = allocate<int64_t>(total);
  }

  void allocate_offsets(int hop) {
    int64_t total = 0;
    for (size_t r = 0; r < spec_.relations.size(); ++r)
      total += num_targets(hop, static_cast<int>(r)) + 1;
    next_offsets_ = allocate<int64_t>(total);
    result_.padded.offsets.push_back(next_offsets_);
  }

  EdgeOutput edge_output(int hop, int r) {
    const SampleResult& padded = result_.padded;
    const std::vector<int64_t>& bounds = bounds_.edges[r];
    const int64_t before = edges_before_[r];
    EdgeOutput out;
    if (padded.edge_index != nullptr) {
      out.row = static_cast<char*>(padded.edge_index) + 2 * before * spec_.index_bytes;
      out.col = static_cast<char*>(out.row) + sum(bounds) * spec_.index_bytes;
      if (spec_.edge_ids) out.edge_ids = padded.edge_ids + before;
    }
    out.duplicates = nodes_[spec_.relations[r].source].duplicates;
    for (int h = 0; h < hop; ++h) out.begin += bounds[h];
    out.capacity = bounds[hop];
    out.padding_id = valid_padding_ ? 0 : -1;
    out.index_bytes = spec_.index_bytes;
    return out;
  }

  /// Samples one hop. `hop` holds the random stream, times and positions; the rest is filled
  /// in here.
  void sample_hop(int hop_number, int r, Hop hop) {
    const RelationSpec& relation = spec_.relations[r];
    const Slots slots = slots_of(hop_number, r);
    hop.fanout = slots.fanout;
    hop.first_target = first_target(hop_number, r);
    hop.num_targets = num_targets(hop_number, r);
    hop.index_bytes = relation.csc.index_bytes;
    hop.looked_up_later = spec_.looks_up_later(hop_number, static_cast<size_t>(r));
    hop.offsets = next_offsets_;
    next_offsets_ += hop.num_targets + 1;
    result_.padded.first_target[r].push_back(hop.first_target);
    result_.padded.num_targets[r].push_back(hop.num_targets);
    const EdgeOutput out = edge_output(hop_number, r);
    int64_t* const edges = edge_count(r, hop_number);
    if (slots.slots > 0) {
      const NodeList& destinations = lists_[relation.destination];
      hop.targets = destinations.ids + hop.first_target;
      if (spec_.disjoint) hop.target_trees = destinations.trees + hop.first_target;
      hop.stride = slots.stride;
      hop.slots = slots.slots;
      fill_slots(relation, hop);
      append(hop_number, r, hop, out, edges);
    } else {
      fill(hop.offsets, 0, (hop.num_targets + 1) * sizeof(int64_t));
    }
    if (out.capacity > 0)
      pad_edges_cuda(out, edges, hop, padded_segment(hop_number, relation.source),
                     padded_segment(hop_number, relation.destination), stream_);
  }

  PaddedSegment padded_segment(int hop, int node_type) {
    const Segments& segments = segments_[node_type];
    PaddedSegment result;
    result.begin = segments.begin[hop];
    result.end = segments.begin[hop + 1];
    result.count = node_count(node_type, hop);
    result.padding_row = padding_row(node_type);
    return result;
  }

  void fill_slots(const RelationSpec& relation, Hop& hop) {
    hop.sources = scratch<char>(hop.slots, hop.index_bytes);
    if (spec_.edge_ids) hop.edge_ids = scratch<int64_t>(hop.slots);
    const HopBatch batch(relation, hop, lists_[relation.source], arena_, stream_);
    if (hop.stride == 0) {
      hop.owners = scratch<uint32_t>(hop.slots);
      fill(hop.sources, 0xFF, hop.slots * hop.index_bytes);
      count_neighbors_cuda(batch);
      count_choices_cuda(batch);
      scan_offsets_cuda(hop.offsets, hop.num_targets, arena_, stream_);
    }
    sample_neighbors_cuda(batch);
    choose_neighbors_cuda(batch);
  }

  /// Gives new nodes their rows in the segment of the hop, and writes the edges.
  void append(int hop_number, int r, const Hop& hop, const EdgeOutput& out, int64_t* edges) {
    const RelationSpec& relation = spec_.relations[r];
    const Segments& segments = segments_[relation.source];
    int64_t* const found = node_count(relation.source, hop_number + 1);
    NodeList segment = lists_[relation.source];
    segment.count = segments.begin[hop_number + 1];
    segment.capacity = segments.begin[hop_number + 2];
    segment.found = found;
    segment.padding_row = padding_row(relation.source);
    const HopBatch batch(relation, hop, segment, arena_, stream_);
    int64_t* const sizes = scratch<int64_t>(kAppendedWords);
    append_unique_cuda(batch, sizes);
    if (out.capacity > 0) write_edges_cuda(batch, {out});
    clamp_hop_counts_cuda(hop, sizes, hop_number, edges, out.capacity, found,
                          segment.capacity - segment.count, bounds_.reported, device_, stream_);
  }

  const SamplerSpec& spec_;
  const StaticShapeBounds& bounds_;
  const bool valid_padding_;
  const int device_;
  const uintptr_t stream_;
  const DeviceGuard guard_;
  std::vector<NodeList> lists_;
  std::vector<Segments> segments_;
  std::vector<NodesOutput> nodes_;     // by type
  std::vector<int64_t> edges_before_;  // by relation: edges of the relations before it
  int64_t* next_offsets_ = nullptr;    // of the next relation of a hop
  StaticShapeResult result_;
};

}  // namespace

StaticShapeResult sample_static_shape_cuda(const SamplerSpec& spec,
                                           const std::vector<PaddedSeeds>& seeds, uint64_t seed,
                                           const uint64_t* seed_at, const SeedTimes& seed_times,
                                           const std::vector<uint32_t*>& direct,
                                           const StaticShapeBounds& bounds, bool valid_padding,
                                           const Allocate& allocate, Arena& arena, int device,
                                           uintptr_t stream) {
  StaticShapeKHop sample(spec, bounds, valid_padding, allocate, arena, device, stream);
  sample.add_seeds(seeds, direct);
  sample.run_hops(seed, seed_at, seed_times);
  return sample.finish();
}

}  // namespace peergraph
