// Rows of lists: where the lists of some rows end, and where their elements are in the store.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/allocate.h"
#include "common/host_device.h"
#include "common/launch.h"
#include "memory/stream_event.h"

namespace peergraph {

/// The lists of some rows of a table, which has a number of lists in each row.
struct RowLists {
  // [rows, columns + 1]: where the lists of a row begin among the stored elements, and the end of
  // the last one.
  const int64_t* bounds = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t num_stored = 0;     // elements in the store
  int64_t* ends = nullptr;    // [rows * columns + 1]: 0, and where each list ends among those read
  int64_t num_elements = 0;   // of all lists
  int64_t* places = nullptr;  // [num_elements]: the row of each element in the store

  PG_HD int64_t count() const { return rows * columns; }

  /// The bounds of a list: at [0] and [1].
  PG_HD const int64_t* list(int64_t number) const {
    return bounds + number / columns * (columns + 1) + number % columns;
  }

  /// Whether the bounds of a list lie within the stored elements.
  PG_HD bool holds(const int64_t* list) const {
    return list[0] >= 0 && list[0] <= list[1] && list[1] <= num_stored;
  }
};

/// Finds the ends of the lists of several tables, and the places of their elements.
class ListPlaces {
 public:
  /// allocate: gives memory of the device.
  /// sizes: list_size_words of pinned memory, on a GPU; not used on the CPU.
  ListPlaces(Allocate allocate, int64_t* sizes, const Launch& launch);

  /// Waits for the copy of the sizes, after an exception.
  ~ListPlaces();

  ListPlaces(const ListPlaces&) = delete;
  ListPlaces& operator=(const ListPlaces&) = delete;

  /// Adds the lists of a table, whose number of elements and places are not known.
  void add(const RowLists& lists) { lists_.push_back(lists); }

  /// Writes the ends of all lists that were added.
  void write_ends();

  /// Waits for the numbers of elements, and writes the places of all elements. Throws
  /// std::runtime_error if a list is no range of stored elements.
  void write_places();

  /// The lists, in the order in which they were added.
  const std::vector<RowLists>& lists() const { return lists_; }

 private:
  Allocate allocate_;
  int64_t* sizes_;
  const Launch launch_;
  std::vector<int64_t> own_sizes_;  // on the CPU
  std::vector<RowLists> lists_;
#ifdef PEERGRAPH_CUDA
  std::optional<StreamEvent> sizes_written_;
#endif
};

/// The words for the sizes of the lists of several tables.
inline int64_t list_size_words(int64_t num_tables) { return num_tables > 0 ? num_tables + 1 : 0; }

#ifdef PEERGRAPH_CUDA
/// Writes the ends of the lists of several tables; sizes[i] gets the number of elements of
/// lists[i]. The word after the sizes becomes 0, or 1 if a list is no range of stored elements. The
/// sizes are in pinned memory.
void write_list_ends_cuda(const std::vector<RowLists>& lists, int64_t* sizes,
                          const Allocate& allocate, const Launch& launch);

/// Writes the places of the elements of several tables.
void write_list_places_cuda(const std::vector<RowLists>& lists, const Launch& launch);
#endif

}  // namespace peergraph
