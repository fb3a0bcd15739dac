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

  /// Prefetches the memory that read() reads first.
  void prefetch(const Neighbors& list) const;

  /// Returns the times of the neighbours of a list: in the table, if they lie there one after the
  /// other, else at `room`, where they are written.
  const int64_t* read(const Candidates& candidates, int64_t* room) const;

  /// Calls visit(time_at) once; time_at(list, i) reads the time of the neighbour i of a list.
  template <typename Visit>
  void with_time_at(const Visit& visit) const {
    if (times_ != nullptr && choice_.time_bytes == 4)
      with_times<int32_t>(visit);
    else if (times_ != nullptr)
      with_times<int64_t>(visit);
    else
      visit([this](const Neighbors& list, int64_t i) { return any_time(list, i); });
  }

 private:
  int64_t any_time(const Neighbors& list, int64_t i) const {
    return Candidates{csc_, choice_, {}, 0, list, {}}.time(i);
  }

  template <typename Time, typename Visit>
  void with_times(const Visit& visit) const {
    const auto* const from = reinterpret_cast<const Time*>(times_);
    const bool by_source = choice_.times_by_internal || choice_.to_user.value_bytes == 0;
    const int64_t bytes = choice_.edge_time ? csc_.edge_ids.row_bytes : csc_.index_bytes;
    if (by_position())
      visit([from](const Neighbors& list, int64_t i) -> int64_t {
        return from[list.edge_begin + i];
      });
    else if (choice_.edge_time ? edge_ids_ == nullptr : !by_source)
      visit([this](const Neighbors& list, int64_t i) { return any_time(list, i); });
    else if (bytes == 4)
      with_ids<int32_t>(from, visit);
    else
      with_ids<int64_t>(from, visit);
  }

  template <typename Id, typename Time, typename Visit>
  void with_ids(const Time* from, const Visit& visit) const {
    if (choice_.edge_time) {
      const auto* const ids = reinterpret_cast<const Id*>(edge_ids_);
      visit([=](const Neighbors& list, int64_t i) -> int64_t {
        return from[ids[list.edge_begin + i]];
      });
    } else {
      visit([=](const Neighbors& list, int64_t i) -> int64_t {
        return from[static_cast<const Id*>(list.indices)[i]];
      });
    }
  }
  bool by_position() const { return choice_.edge_time && csc_.edge_ids.map.rows == 0; }
  template <typename Time, typename Id>
  void gather(const Id* ids, int64_t count, int64_t* times) const;
  template <typename Time>
  bool read_as(const Candidates& candidates, int64_t* times) const;

  const CscView& csc_;
  const Choice& choice_;
  const char* times_ = nullptr;     // the first row, if all rows lie one after the other
  const char* edge_ids_ = nullptr;  // as times_, of the ids of edges
};

/// What counting finds out about the lists of a hop's targets; the choice uses it.
class ListTimes {
 public:
  /// Makes room for the times of the lists of a hop, unless they are so many that they are better
  /// read again.
  void plan(const Neighbors* lists, int64_t num_targets);

  /// Where the times of the lists from `target` on may be written, or null if there is no room.
  int64_t* room(int64_t target) const {
    return has_room_ ? room_.get() + targets_[target].begin : nullptr;
  }

  void keep(int64_t target, const int64_t* times) { targets_[target].times = times; }

  /// The times that were kept, or null.
  const int64_t* of(int64_t target) const { return targets_[target].times; }

  /// Notes that a target's list is now a part of its list in which no time is out of order, and
  /// that times matter no more for the choice out of it.
  void set_trimmed(int64_t target) { targets_[target].trimmed = true; }

  bool is_trimmed(int64_t target) const { return targets_[target].trimmed; }

 private:
  struct Target {
    int64_t begin = 0;
    const int64_t* times = nullptr;
    bool trimmed = false;
  };

  std::vector<Target> targets_;
  std::unique_ptr<int64_t[]> room_;
  int64_t capacity_ = 0;
  bool has_room_ = false;
};

}  // namespace peergraph
