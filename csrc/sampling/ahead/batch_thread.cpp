#include "sampling/ahead/batch_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/check.h"
#include "memory/stream_event.h"
#include "memory/torch_tensor.h"
#include "sampling/khop/backend.h"

namespace peergraph {
namespace {

struct Batch {
  BatchRequest request;
  BatchResult result;
#ifdef PEERGRAPH_CUDA
  std::optional<StreamEvent> after, ready;
#endif
};

}  // namespace

struct BatchThread::State {
  State(const TorchFunctions& functions, int gpu, uintptr_t own_stream, int64_t most)
      : torch(functions), device(gpu), stream(own_stream), most_scratch(most) {}

  const TorchFunctions torch;
  const int device;
  const uintptr_t stream;
  const int64_t most_scratch;
  const pid_t process = getpid();

  std::mutex mutex;
  std::condition_variable changed;
  // In the order of the requests; the first `num_ready` are ready, and the next one may be in work.
  std::deque<std::unique_ptr<Batch>> batches;
  size_t num_ready = 0;
  bool closed = false;
  std::thread thread;

  // Of the thread alone.
  int64_t scratch_bytes = 0;  // what the largest sample took
  int64_t broken_work_space = -1;

  int64_t last_work_space = -1;  // of the loop alone

  void serve() {
    const auto in_stream = begin();
    while (true) {
      Batch* batch = nullptr;
      {
        std::unique_lock<std::mutex> hold(mutex);
        changed.wait(hold, [this] { return closed || num_ready < batches.size(); });
        if (closed) return;
        batch = batches[num_ready].get();
      }
      try {
        if (!in_stream) throw std::runtime_error("the thread has no stream");
        make(*batch);
      } catch (...) {
        // Errors that kernels have reported before are raised by gathers, and nowhere else again.
        batch->result = {};
        batch->result.error = std::current_exception();
        broken_work_space = batch->request.work_space;
      }
      {
        const std::lock_guard<std::mutex> hold(mutex);
        ++num_ready;
      }
      changed.notify_all();
    }
  }

  /// Returns null if the thread cannot use the device.
  std::unique_ptr<TorchStream> begin() {
    try {
#ifdef PEERGRAPH_CUDA
      if (device >= 0) begin_gpu_thread(device);
#endif
      return std::make_unique<TorchStream>(torch, device, stream);
    } catch (...) {
      return nullptr;
    }
  }

  TorchTensor tensor(const std::vector<int64_t>& sizes, int32_t dtype, int64_t num_bytes) const {
    return torch_tensor(torch, device, sizes, dtype, num_bytes);
  }

  template <typename T>
  TorchTensor vector(int64_t count, int32_t dtype, T** data) const {
    TorchTensor result = tensor({count}, dtype, count * static_cast<int64_t>(sizeof(T)));
    *data = static_cast<T*>(result.data());
    return result;
  }

  void make(Batch& batch) {
    const BatchRequest& request = batch.request;
    if (request.work_space == broken_work_space) throw std::bad_alloc();
#ifdef PEERGRAPH_CUDA
    // The GPU may be far behind the loop. Without this wait, batches whose memory is still in use
    // would accumulate.
    if (batch.after) batch.after->synchronize();
#endif
    sample(request, batch.result);
    std::vector<TableRead> reads;
    for (const TableOfBatch& of : request.tables->tables)
      reads.push_back({of.table.get(), of.elements.get(), ids_of(of, request, batch.result)});
    batch.result.rows = gather_tables(reads, torch, request.list_sizes, request.launch);
#ifdef PEERGRAPH_CUDA
    if (device >= 0) batch.ready.emplace(device).record(stream);
#endif
  }

  void sample(const BatchRequest& request, BatchResult& result) {
    const Opened opened(*request.spec);
    const SamplerSpec& spec = *opened;
    std::vector<TorchTensor> scratch;
    const Allocate allocate = [&](int64_t num_bytes) -> void* {
      scratch.push_back(tensor({num_bytes}, torch.uint8, num_bytes));
      return scratch.back().data();
    };
    Arena arena(allocate, scratch_bytes == 0 ? nullptr : allocate(scratch_bytes), scratch_bytes);
    const auto backend = make_backend(spec, request.launch, request.mailbox, arena);
    const AllocateResult allocate_result = [&](const ResultSizes& sizes, SampleResult& sample) {
      return allocate_arrays(spec, sizes, sample, result.arrays);
    };
    result.sample = sample_khop(spec, request.seeds, request.seed, request.seed_times, request.maps,
                                allocate_result, arena, *backend);
    scratch_bytes = std::min(std::max(scratch_bytes, arena.bytes_needed()), most_scratch);
  }

  int64_t* allocate_arrays(const SamplerSpec& spec, const ResultSizes& sizes, SampleResult& sample,
                           BatchArrays& arrays) const {
    arrays.nodes = vector(sizes.nodes, torch.int64, &sample.nodes.ids);
    if (spec.disjoint) arrays.batch = vector(sizes.nodes, torch.int64, &sample.nodes.batch);
    if (spec.duplicate_counts)
      arrays.duplicates = vector(sizes.nodes, torch.int32, &sample.nodes.duplicates);
    arrays.edge_index = tensor({2 * sizes.edges}, spec.index_bytes == 4 ? torch.int32 : torch.int64,
                               2 * sizes.edges * spec.index_bytes);
    sample.edge_index = arrays.edge_index.data();
    if (spec.edge_ids) arrays.edge_ids = vector(sizes.edges, torch.int64, &sample.edge_ids);
    int64_t* offsets = nullptr;
    arrays.offsets = vector(sizes.offsets, torch.int64, &offsets);
    return offsets;
  }

  static IdList ids_of(const TableOfBatch& table, const BatchRequest& request,
                       const BatchResult& result) {
    const auto& counts = table.of_edges ? result.sample.num_edges : result.sample.num_nodes;
    PG_CHECK_ARG(table.type >= 0 && static_cast<size_t>(table.type) < counts.size(),
                 "rows of a type that does not exist");
    // Ids of all types are one after the other.
    int64_t before = 0, count = 0;
    for (int type = 0; type <= table.type; ++type) {
      before += count;
      count = 0;
      for (int64_t of_hop : counts[type]) count += of_hop;
    }
    const int64_t* const first = table.of_edges ? result.sample.edge_ids : result.sample.nodes.ids;
    IdList ids;
    ids.ids = first + before;
    ids.id_bytes = sizeof(int64_t);
    ids.count = count;
    ids.max_blocks = request.max_blocks;
    return ids;
  }
};

BatchThread::BatchThread(const TorchFunctions& torch, int device, uintptr_t stream,
                         int64_t most_scratch)
    : state_(new State(torch, device, stream, most_scratch)) {
  try {
    state_->thread = std::thread([state = state_] { state->serve(); });
    pthread_setname_np(state_->thread.native_handle(), "peergraph batch");
  } catch (...) {
    delete state_;
    throw;
  }
}

BatchThread::~BatchThread() {
  if (getpid() != state_->process) return;
  close();
  delete state_;
}

void BatchThread::check_process() const {
  if (getpid() != state_->process)
    throw std::runtime_error(
        "this iteration makes batches in a thread of the process that was forked: begin another "
        "one");
}

void BatchThread::submit(BatchRequest request, [[maybe_unused]] std::optional<uintptr_t> after) {
  check_process();
  PG_CHECK_ARG(request.spec && request.tables, "a request needs a sampler and tables");
  PG_CHECK_ARG(request.launch.device == state_->device && request.launch.stream == state_->stream,
               "a request must be for the thread's stream");
  state_->last_work_space = request.work_space;
  auto batch = std::make_unique<Batch>();
  batch->request = std::move(request);
#ifdef PEERGRAPH_CUDA
  if (after && state_->device >= 0) batch->after.emplace(state_->device).record(*after);
#endif
  {
    const std::lock_guard<std::mutex> hold(state_->mutex);
    state_->batches.push_back(std::move(batch));
  }
  state_->changed.notify_all();
}

bool BatchThread::wait(double seconds) {
  check_process();
  std::unique_lock<std::mutex> hold(state_->mutex);
  return state_->changed.wait_for(hold, std::chrono::duration<double>(seconds), [this] {
    return state_->num_ready > 0 || state_->closed;
  }) && state_->num_ready > 0;
}

BatchResult BatchThread::take([[maybe_unused]] uintptr_t reader) {
  check_process();
  std::unique_ptr<Batch> batch;
  {
    const std::lock_guard<std::mutex> hold(state_->mutex);
    PG_CHECK_ARG(state_->num_ready > 0, "no batch is made");
    batch = std::move(state_->batches.front());
    state_->batches.pop_front();
    --state_->num_ready;
  }
#ifdef PEERGRAPH_CUDA
  if (batch->ready) batch->ready->block(reader);
#endif
  return std::move(batch->result);
}

void BatchThread::close() {
  if (getpid() != state_->process) return;
  {
    const std::lock_guard<std::mutex> hold(state_->mutex);
    if (state_->closed) return;
    state_->closed = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

bool BatchThread::has_failed() const {
  return state_->closed && state_->broken_work_space == state_->last_work_space;
}

}  // namespace peergraph
