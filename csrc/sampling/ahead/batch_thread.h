// A thread that makes batches ahead: it draws samples, and gathers rows of tables for their nodes
// and edges. It needs no Python: requests have all that it reads, and torch's allocator is called
// by its C interface. On a GPU it works on a stream of its own.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "common/launch.h"
#include "common/torch_memory.h"
#include "memory/gather_tables.h"
#include "memory/lease.h"
#include "sampling/khop/khop.h"

namespace peergraph {

/// A table with a row for each node of a type, or for each edge of a relation.
struct TableOfBatch {
  std::shared_ptr<const StoredTable> table;
  std::shared_ptr<const StoredTable> elements;  // of the lists in the rows, as in TableRead
  bool of_edges = false;
  int type = 0;  // index into the sampler's node types or relations
};

struct TablesOfBatch {
  std::vector<TableOfBatch> tables;
  int64_t num_lists = 0;  // tables with elements
};

/// What a batch is made of. The memory that it refers to stays until the batch is taken.
struct BatchRequest {
  std::shared_ptr<const Leased<SamplerSpec>> spec;
  std::vector<SeedList> seeds;
  uint64_t seed = 0;
  SeedTimes seed_times;
  // The work space, for one batch after the other. After an error its contents are undefined:
  // later batches of the same work space fail with std::bad_alloc.
  std::vector<NodeMap*> maps;
  int64_t* mailbox = nullptr;
  int64_t work_space = 0;  // its number
  std::shared_ptr<const TablesOfBatch> tables;
  int64_t* list_sizes = nullptr;  // as those of gather_tables
  int64_t max_blocks = 0;         // of a gather, see IdList
  Launch launch;
};

struct BatchArrays {
  TorchTensor nodes, batch, duplicates, edge_index, edge_ids, offsets;
};

struct BatchResult {
  std::exception_ptr error;  // std::bad_alloc: whoever has more memory may try again
  SampleResult sample;       // its counts; the memory is that of the arrays
  BatchArrays arrays;
  std::vector<TorchTensor> rows;  // as gather_tables returns them
};

class BatchThread {
 public:
  /// most_scratch: the most bytes of scratch memory that a sample gets at once.
  BatchThread(const TorchFunctions& torch, int device, uintptr_t stream, int64_t most_scratch);

  /// Ends the thread, and drops all batches. In a forked child, which has no such thread, nothing
  /// is freed.
  ~BatchThread();

  BatchThread(const BatchThread&) = delete;
  BatchThread& operator=(const BatchThread&) = delete;

  /// Adds a request. The thread waits with it for the work that the stream `after` has got so far;
  /// none for the first requests.
  void submit(BatchRequest request, std::optional<uintptr_t> after);

  /// Waits until the oldest batch is made; returns whether it is.
  bool wait(double seconds);

  /// Takes the oldest batch, which is made; work of the stream `reader` will wait for it.
  BatchResult take(uintptr_t reader);

  /// Ends the thread after the batch that it is making.
  void close();

  /// Whether a batch of the last work space has failed; for threads that have ended.
  bool has_failed() const;

 private:
  struct State;

  void check_process() const;

  State* state_;  // stays in a forked child: the thread may have held its mutex
};

}  // namespace peergraph
