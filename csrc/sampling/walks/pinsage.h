// PinSAGE neighbours (Ying et al. 2018): the nodes that random walks from a target visit most, by
// falling number of visits; of equal numbers, what was visited first comes first.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sampling/common/arena.h"
#include "sampling/common/hop.h"
#include "sampling/walks/random_walk.h"

namespace peergraph {

/// How a hop finds the neighbours of its targets, as many as its fanout, by walks.
struct VisitChoice {
  std::vector<CscView> relations;  // that a walk follows in turn, over and over
  int64_t num_walks = 0;           // from each target
  int64_t walk_length = 0;         // how often a walk follows the relations; each time is a visit
  uint64_t restart_below = 0;      // the probability that a walk ends after a visit
  uint64_t stream = 0;             // of the first step of the first hop

  int64_t num_relations() const { return static_cast<int64_t>(relations.size()); }
  int64_t steps() const { return walk_length * num_relations(); }
  int64_t visits() const { return num_walks * walk_length; }  // from each target; below 2^31
};

/// The nodes that the walks from targets visit.
struct Visits {
  const int64_t* nodes = nullptr;  // [targets * walks, steps + 1] internal ids, -1: none
  int64_t walks = 0;
  int64_t steps = 0;
  int64_t every = 1;  // steps from visit to visit
  uint32_t per_walk = 0;
  uint32_t per_target = 0;

  PG_HD int64_t node(int64_t target, uint32_t visit) const {
    const int64_t walk = target * walks + visit / per_walk;
    return nodes[walk * (steps + 1) + (1 + visit % per_walk) * every];
  }
};

/// The walks of a hop from all of its targets. `nodes` and `positions` are memory for them; the
/// starts are still to be written.
Walks walks_of(const VisitChoice& choice, const Hop& hop, int64_t* nodes, int64_t* positions);
Visits visits_of(const VisitChoice& choice, const int64_t* nodes);

/// Calls walk(relation, walks) for all steps, at once if there is one relation.
template <typename Walk>
void take_walks(const VisitChoice& choice, Walks walks, const Walk& walk) {
  walks.steps = choice.num_relations() == 1 ? choice.steps() : 1;
  for (; walks.first_step < choice.steps(); walks.first_step += walks.steps)
    walk(choice.relations[walks.first_step % choice.num_relations()], walks);
}

/// The neighbours of the targets of a hop on the CPU.
class MostVisited {
 public:
  /// Walks from all targets, and writes the number of neighbours of each into the hop's offsets.
  void find(const VisitChoice& choice, const Hop& hop, int num_threads);

  /// Writes the neighbours of targets [begin, end) and their visits, as edge ids, to their slots.
  void fill_slots(const Hop& hop, int64_t begin, int64_t end) const;

 private:
  std::unique_ptr<int64_t[]> nodes_;   // [targets, fanout]
  std::unique_ptr<int32_t[]> counts_;  // [targets, fanout]
};

#ifdef PEERGRAPH_CUDA
/// Walks from all targets of a hop of reserved slots; writes neighbours to slots and claims them,
/// their visits to edge ids and the number of neighbours of each target to offsets. Asynchronous,
/// in `stream` of `device`.
void find_most_visited_cuda(const VisitChoice& choice, const Hop& hop, const NodeIndex& sources,
                            Arena& arena, int device, uintptr_t stream);
#endif

}  // namespace peergraph
