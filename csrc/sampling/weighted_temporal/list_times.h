// The times of the neighbours of a hop's targets, read once on the CPU: every time is a read of
// memory at random, and both the number of edges and the choice depend on them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sampling/common/hop.h"
#include "sampling/weighted_temporal/choice.h"
#include "store/csc_view.h"

namespace peergraph {

/// Reads times of whole lists; branches are taken once for a list instead of once for a neighbour.
class TimeReader {
 public:
  TimeReader(const CscView& csc, const Choice& choice);

  /// Writes the times of the neighbours of a list.
  void read(const Candidates& candidates, int64_t* times) const;

 private:
  template <typename Time, typename Id>
  void gather(const Id* ids, int64_t count, int64_t* times) const;
  template <typename Time>
  bool read_as(const Candidates& candidates, int64_t* times) const;

  const CscView& csc_;
  const Choice& choice_;
  const char* times_ = nullptr;     // the first row, if all rows lie one after the other
  const char* edge_ids_ = nullptr;  // as times_, of the ids of edges
};

/// The times of all lists of a hop, unless they are so many that they are better read again.
class ListTimes {
 public:
  /// Makes room for the lists of a hop; nothing is read.
  void plan(const CscView& csc, const Hop& hop);

  /// Where the times of a target's list are, or null if there is no room for them.
  int64_t* of(int64_t target) const {
    return offsets_.empty() ? nullptr : times_.get() + offsets_[target];
  }

 private:
  std::vector<int64_t> offsets_;  // [targets]; empty: no room
  std::unique_ptr<int64_t[]> times_;
  int64_t capacity_ = 0;
};

}  // namespace peergraph
