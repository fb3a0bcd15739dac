// K-hop sampling (WholeGraph III-C): the specification of a sampler, the result of a sample, and
// the loop over hops that the CPU and CUDA backends share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sampling/append_unique/node_map.h"
#include "sampling/common/arena.h"
#include "sampling/common/hop.h"
#include "sampling/weighted_temporal/choice.h"
#include "store/csc_view.h"

namespace peergraph {

struct NodeTypeSpec {
  std::string name;
  int64_t num_nodes = 0;
  IdMapView to_internal;
  IdMapView to_user;
};

struct RelationSpec {
  int source = 0;       // index into node types
  int destination = 0;  // index into node types
  CscView csc;
  std::vector<int64_t> fanouts;  // per hop; -1: all
  Choice choice;
};

struct SamplerSpec {
  std::vector<NodeTypeSpec> node_types;
  std::vector<RelationSpec> relations;
  int num_hops = 0;
  bool expand_all = false;  // a hop expands all nodes so far, not only the new ones
  bool disjoint = false;
  bool induced = false;  // return all edges among the sampled nodes, as one hop
  bool edge_ids = true;
  bool duplicate_counts = false;
  int index_bytes = 8;  // size of an item of row and col

  /// Whether the nodes that relation `r` finds in this hop are looked up in the index later.
  bool looks_up_later(int hop, size_t r) const {
    if (induced || hop + 1 < num_hops) return true;
    for (size_t later = r + 1; later < relations.size(); ++later)
      if (relations[later].source == relations[r].source) return true;
    return false;
  }
};

struct SeedList {
  int node_type = 0;
  const int64_t* ids = nullptr;  // user ids
  int64_t count = 0;
};

struct NodesResult {
  int64_t* ids = nullptr;         // user ids
  int64_t* batch = nullptr;       // disjoint only
  int32_t* duplicates = nullptr;  // when asked for
  std::vector<int64_t> per_hop;   // seeds, hop 1, ...
};

struct EdgesResult {
  void* row = nullptr;
  void* col = nullptr;
  int64_t* ids = nullptr;        // when asked for
  std::vector<int64_t> per_hop;  // hop 1, ...
};

struct BlockResult {
  int64_t* indptr = nullptr;  // [num_targets + 1]
  int64_t first_target = 0;
  int64_t num_targets = 0;
};

struct SampleResult {
  std::vector<NodesResult> nodes;   // by node type
  std::vector<EdgesResult> edges;   // by relation
  std::vector<BlockResult> blocks;  // hop * num relations + relation
};

/// Raises IndexError for a seed that is no node of its type.
[[noreturn]] void throw_bad_seed(const NodeTypeSpec& type, int64_t position, int64_t id);

/// The steps that differ between CPU and CUDA. Calls are made in order, on one stream.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual void fill(void* to, int byte, int64_t num_bytes) = 0;
  virtual void copy(void* to, const void* from, int64_t num_bytes) = 0;
  /// Appends seeds to `nodes`, which has the capacity, and inserts them into the index.
  /// Raises IndexError for an id that is no node.
  virtual void add_seeds(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                         NodeList& nodes) = 0;
  /// Inserts all of `nodes` into their index, which is empty.
  virtual void reindex(const NodeList& nodes) = 0;
  /// Chooses the layout of the hop's slots: sets stride and slots; writes offsets if stride is 0.
  virtual void plan(const RelationSpec& relation, Hop& hop) = 0;
  /// Fills the hop's slots, gives new sources rows and appends them to `sources`; sets num_edges.
  virtual void sample_neighbors(const RelationSpec& relation, Hop& hop, NodeList& sources) = 0;
  /// Counts the induced subgraph's edges of a hop from all nodes: writes offsets, sets slots.
  virtual void plan_induced(const RelationSpec& relation, Hop& hop, const NodeIndex& sources) = 0;
  /// Fills the slots of the induced subgraph with rows.
  virtual void induce(const RelationSpec& relation, Hop& hop, const NodeIndex& sources) = 0;
  /// Writes the edges of a hop whose slots hold rows.
  virtual void write_edges(const Hop& hop, const EdgeOutput& out) = 0;
  virtual void write_nodes(const NodeTypeSpec& type, const NodeList& nodes,
                           const NodesResult& out) = 0;
  /// Ends the sample; no other call follows.
  virtual void finish() = 0;
};

/// Draws one k-hop sample. `seed_times` holds a time for each seed if a relation is temporal.
/// `maps` are one direct map per node type, used by this sample alone until the function
/// returns; after an exception their contents are undefined. Disjoint samples do not use them.
/// `allocate` gives the memory of each result; all other memory comes from the arena.
SampleResult sample_khop(const SamplerSpec& spec, const std::vector<SeedList>& seeds, uint64_t seed,
                         const int64_t* seed_times, const std::vector<NodeMap*>& maps,
                         const Allocate& allocate, Arena& arena, Backend& backend);

}  // namespace peergraph
