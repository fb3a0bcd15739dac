// Finds the rows that a batch needs from other machines, in tables with rows split over machines
// (WholeGraph III-D).
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/ids.h"
#include "common/launch.h"
#include "memory/gather.h"
#include "memory/table_view.h"

namespace peergraph {

/// The machine of each internal row: every machine has the first `hot` rows; row hot + c is on
/// machine c % machines. The local rows of a machine are its hot rows, then its other rows.
struct MachineSplit {
  int64_t rows = 0;
  int64_t hot = 0;
  int64_t machines = 1;
  int64_t index = 0;  // of this machine
};

/// The low bits of a key of a row are the number of the row among its machine's cold rows; the
/// others are the number of the row's route.
constexpr int kRowNumberBits = 40;

/// The routes of rows of other machines: of cold row c, the one in first_keys[c % period].
struct RowRoutes {
  const int64_t* first_keys = nullptr;  // [period] the key of a row with the number 0
  int64_t period = 0;                   // a multiple of the number of machines
  int64_t count = 0;                    // of routes
};

/// A row's key with fewer bits, in the same order, so that sorting takes fewer passes. The largest
/// key stands for a row that is not on another machine.
struct ShortKeys {
  int number_bits;
  int bits;  // of all keys
  uint64_t none;

  ShortKeys(const MachineSplit& split, const RowRoutes& routes)
      : number_bits(width((split.rows - split.hot) / split.machines)),
        bits(number_bits + width(routes.count)),
        none(static_cast<uint64_t>(routes.count) << number_bits) {}

  PG_HD uint64_t shorten(int64_t first_key, int64_t number) const {
    return static_cast<uint64_t>(first_key >> kRowNumberBits << number_bits | number);
  }
  PG_HD int64_t restore(uint64_t key) const {
    const uint64_t route = key >> number_bits;
    return static_cast<int64_t>(route << kRowNumberBits | (key ^ route << number_bits));
  }

 private:
  static int width(int64_t largest) {
    int bits = 1;
    while (largest >> bits != 0) ++bits;
    return bits;
  }
};

/// What is asked: the rows of ids.
struct RemoteRowQuery {
  IdList ids;
  TableView order;          // rows of 4 or 8 bytes: the internal row of each user id
  bool is_ordered = false;  // without an order, internal rows are users' ids
  MachineSplit split;
  RowRoutes routes;
  ShortKeys keys{split, routes};

  /// Returns the local row of a valid id, -1 if another machine has it; `key` becomes its key.
  PG_HD int64_t locate(int64_t id, uint64_t* key) const {
    const int64_t row =
        is_ordered ? load_id(order.find(id), static_cast<int>(order.row_bytes), 0) : id;
    const int64_t cold = row - split.hot, number = cold / split.machines;
    *key = keys.none;
    if (cold < 0) return row;
    if (cold - number * split.machines == split.index) return split.hot + number;
    *key = keys.shorten(routes.first_keys[cold % routes.period], number);
    return -1;
  }
};

/// The answer, in the device's memory; each has room for all ids.
struct RemoteRows {
  int64_t* local;      // the local row of each id; -1 where another machine has the row
  int64_t* positions;  // the positions of the ids with remote rows, by key, then by position
  int64_t* slots;      // the position of each of these rows in `keys`
  int64_t* keys;       // the keys of the distinct rows, ascending
};

struct RemoteRowCounts {
  int64_t ids = 0;   // ids with remote rows
  int64_t rows = 0;  // distinct remote rows
};

/// Finds the rows. Checks the ids first. All memory must be accessible from this CPU.
RemoteRowCounts find_remote_rows_cpu(const RemoteRowQuery& query, const RemoteRows& out,
                                     int num_threads);

#ifdef PEERGRAPH_CUDA
/// The bytes of scratch memory that find_remote_rows_cuda needs on `device`.
int64_t remote_rows_scratch(const RemoteRowQuery& query, int device);

/// Does the same as find_remote_rows_cpu on a GPU, and waits for the stream. Also copies the keys
/// to `host_keys`, which has room for all ids. `scratch` is memory of the device.
RemoteRowCounts find_remote_rows_cuda(const RemoteRowQuery& query, const RemoteRows& out,
                                      int64_t* host_keys, void* scratch, const Launch& launch);
#endif

}  // namespace peergraph
