// K-hop sampling (WholeGraph III-C): the specification of a sampler, the result of a sample, and
// the loop over hops that the CPU and CUDA backends share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sampling/append_unique/node_map.h"
#include "sampling/common/arena.h"
#include "sampling/common/hop.h"
#include "sampling/walks/pinsage.h"
#include "sampling/weighted_temporal/choice.h"
#include "store/csc_view.h"

namespace peergraph {

struct NodeTypeSpec {
  std::string name;
  int64_t num_nodes = 0;
  IdMapView to_internal;
  IdMapView to_user;
};

struct RelationSpec : RelationView {
  int source = 0;                // index into node types
  int destination = 0;           // index into node types
  std::vector<int64_t> fanouts;  // per hop; -1: all
  // By walks, of which `csc` is the last relation, in place of its lists. The sampler has no other
  // relation then, and the numbers of visits are its edge ids.
  std::optional<VisitChoice> visits;
};

struct SamplerSpec {
  std::vector<NodeTypeSpec> node_types;
  std::vector<RelationSpec> relations;
  const RelationView* relations_on_device = nullptr;  // [relations] on CUDA, if there are several
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

/// The nodes of a type in the arrays of the result.
struct NodesOutput {
  int64_t* ids = nullptr;         // user ids
  int64_t* batch = nullptr;       // disjoint only
  int32_t* duplicates = nullptr;  // when asked for
};

/// The nodes of a type, and where they are written.
struct NodesWrite {
  const NodeTypeSpec* type = nullptr;
  const NodeList* nodes = nullptr;
  NodesOutput out;
};

/// Each array has the values of all types or relations, one after the other, so that their number
/// does not matter to the allocator.
struct SampleResult {
  NodesOutput nodes;
  // Of each relation the rows, then the columns: its edge index.
  void* edge_index = nullptr;
  int64_t* edge_ids = nullptr;    // when asked for
  std::vector<int64_t*> offsets;  // by hop, of each relation [num_targets + 1]

  std::vector<std::vector<int64_t>> num_nodes;     // by type: seeds, hop 1, ...
  std::vector<std::vector<int64_t>> num_edges;     // by relation: hop 1, ...
  std::vector<std::vector<int64_t>> first_target;  // by relation and hop
  std::vector<std::vector<int64_t>> num_targets;   // by relation and hop
};

/// The number of elements of each array of a result.
struct ResultSizes {
  int64_t nodes = 0;
  int64_t edges = 0;    // of the edge ids; the edge index has twice as many
  int64_t offsets = 0;  // of all hops, one after the other
};

/// Gives memory to the arrays of a result: sets `nodes`, `edge_index` and `edge_ids`, those that
/// the sampler returns, and returns the memory of the offsets. All at once, as each call waits for
/// Python's lock.
using AllocateResult = std::function<int64_t*(const ResultSizes& sizes, SampleResult& result)>;

/// A hop by one relation.
struct HopTask {
  int32_t number = 0;  // of the relation
  const RelationSpec* relation = nullptr;
  Hop* hop = nullptr;
  NodeList* sources = nullptr;
};

/// Makes room for the slots of hops, whose number is known: gives them memory, one after the other,
/// and their lists of nodes and indices room for what the slots lead to.
using MakeRoom = std::function<void(const HopTask* tasks, size_t count)>;

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
  /// Samples one hop by several relations, which all have targets and edges: fills their slots,
  /// gives new sources rows in the order of the relations and appends them to the lists; sets
  /// num_edges. Calls `make_room` for all tasks, at once or for some after the other.
  virtual void sample_neighbors(std::vector<HopTask>& tasks, const MakeRoom& make_room) = 0;
  /// As sample_neighbors, for the induced subgraph: fills slots with the rows of all sources that
  /// the lists have.
  virtual void induce(std::vector<HopTask>& tasks, const MakeRoom& make_room) = 0;
  /// Writes the edges of hops whose slots hold rows, each to its output.
  virtual void write_edges(const std::vector<HopTask>& tasks,
                           const std::vector<EdgeOutput>& outputs) = 0;
  virtual void write_nodes(const std::vector<NodesWrite>& writes) = 0;
  /// Ends the sample; no other call follows.
  virtual void finish() = 0;
};

/// Draws one k-hop sample. `seed_times` has a time for each seed if a relation is temporal.
/// `maps` are one direct map per node type, used by this sample alone until the function
/// returns; after an exception their contents are undefined. Disjoint samples do not use them.
/// `allocate` is called once, at the end; all other memory comes from the arena.
SampleResult sample_khop(const SamplerSpec& spec, const std::vector<SeedList>& seeds, uint64_t seed,
                         const SeedTimes& seed_times, const std::vector<NodeMap*>& maps,
                         const AllocateResult& allocate, Arena& arena, Backend& backend);

}  // namespace peergraph
