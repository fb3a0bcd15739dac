#include <algorithm>
#include <utility>
#include <vector>

#include "common/cuda_check.cuh"
#include "sampling/append_unique/append_unique.h"
#include "sampling/khop/backend.h"
#include "sampling/khop/capacity.h"
#include "sampling/khop/write_sample.h"
#include "sampling/neighbor/neighbor.h"
#include "sampling/subgraph/induced.h"
#include "sampling/walks/pinsage.h"
#include "sampling/weighted_temporal/choose.h"
#include "sampling/weighted_temporal/time_order.h"

namespace peergraph {
namespace {

// Seeds have a rank: the number of their list in the high bits, the position in the list in the
// low bits. The least rank is the first bad seed.
constexpr int kRankBits = 40;

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, uintptr_t stream, const RelationView* relations, int64_t* mailbox,
              Arena& arena)
      : guard_(device),
        device_(device),
        stream_(stream),
        relations_(relations),
        mailbox_(mailbox),
        arena_(arena) {
    mailbox_[kFirstBad] = kNoneBad;
  }

  ~CudaBackend() override {
    // After an exception, pending copies to the mailbox must end before its owner reuses it.
    if (mail_under_way_) cudaStreamSynchronize(stream());
  }

  void fill(void* to, int byte, int64_t num_bytes) override {
    PG_CUDA_CHECK(cudaMemsetAsync(to, byte, static_cast<size_t>(num_bytes), stream()));
  }

  void copy(void* to, const void* from, int64_t num_bytes) override {
    PG_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes),
                                  cudaMemcpyDeviceToDevice, stream()));
  }

  void add_seeds(const NodeTypeSpec& type, const SeedList& seeds, int64_t first_tree,
                 NodeList& nodes) override {
    if (type.num_nodes == 0) throw_bad_seed(type, 0, seed_id(seeds, 0));
    if (first_bad_ == nullptr) {
      first_bad_ = static_cast<uint64_t*>(arena_.take(sizeof(uint64_t)));
      fill(first_bad_, 0xFF, sizeof(uint64_t));
    }
    const uint64_t rank = static_cast<uint64_t>(seeds_.size()) << kRankBits;
    add_seeds_cuda(type, seeds, first_tree, nodes, rank, first_bad_, stream_);
    nodes.count += seeds.count;
    seeds_.push_back({&type, seeds});
    to_mailbox(kFirstBad, first_bad_, 1);
  }

  void reindex(const NodeList& nodes) override { reindex_cuda(nodes, stream_); }

  void sample_neighbors(std::vector<HopTask>& tasks, const MakeRoom& make_room) override {
    Hop& first = *tasks.front().hop;
    for (const HopTask& task : tasks) take_parts(task.relation->choice, *task.hop, arena_);
    const auto& visits = tasks.front().relation->visits;
    if (visits || (tasks.size() == 1 && reserves_by_fanout(first.num_targets, first.fanout))) {
      first.stride = first.fanout;
      first.slots = first.num_targets * first.fanout;
      bisect_lists_cuda(batch_of(tasks));
    } else {
      count_edges(tasks, [](const HopBatch& batch) {
        bisect_lists_cuda(batch);
        count_neighbors_cuda(batch);
        count_choices_cuda(batch);
      });
    }
    const std::vector<HopTask> used = take_slots(tasks, make_room);
    if (used.empty()) return;
    const HopBatch batch = batch_of(used);
    if (visits) {
      find_most_visited_cuda(*visits, first, used.front().sources->index, arena_, device_, stream_);
    } else {
      sample_neighbors_cuda(batch);
      choose_neighbors_cuda(batch);
    }
    append(used, batch);
  }

  void induce(std::vector<HopTask>& tasks, const MakeRoom& make_room) override {
    count_edges(tasks, count_induced_cuda);
    const std::vector<HopTask> used = take_slots(tasks, make_room);
    if (used.empty()) return;
    induce_cuda(batch_of(used));
    for (const HopTask& task : used) task.hop->num_edges = task.hop->slots;
  }

  void write_edges(const std::vector<HopTask>& tasks,
                   const std::vector<EdgeOutput>& outputs) override {
    write_edges_cuda(batch_of(tasks), outputs);
  }

  void write_nodes(const std::vector<NodesWrite>& writes) override {
    write_nodes_cuda(writes, false, arena_, stream_);
  }

  void finish() override {
    if (mail_under_way_) wait();
  }

 private:
  enum Mail { kFirstBad = 0, kSizes = 1 };
  static constexpr int64_t kNoneBad = -1;

  struct Seeds {
    const NodeTypeSpec* type;
    SeedList list;
  };

  cudaStream_t stream() const { return reinterpret_cast<cudaStream_t>(stream_); }

  HopBatch batch_of(const std::vector<HopTask>& tasks) {
    std::vector<HopRef> refs;
    for (const HopTask& task : tasks)
      refs.push_back({task.number, task.relation, task.hop, task.sources});
    return HopBatch(std::move(refs), relations_, arena_, stream_);
  }

  /// Counts the edges by `count`, writes the offsets and sets the slots, which are dense. Waits for
  /// the number of edges of each relation. Puts the tasks in the order of their sources.
  template <typename Count>
  void count_edges(std::vector<HopTask>& tasks, const Count& count) {
    if (tasks.size() == 1) {
      Hop& hop = *tasks.front().hop;
      count(batch_of(tasks));
      scan_offsets_cuda(hop.offsets, hop.num_targets, arena_, stream_);
      to_mailbox(kSizes, hop.offsets + hop.num_targets, 1);
    } else {
      std::stable_sort(tasks.begin(), tasks.end(), [](const HopTask& a, const HopTask& b) {
        return a.relation->source < b.relation->source;
      });
      count_edges_of_many(tasks, count);
    }
    wait();
    int64_t slots_before = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const bool same = i > 0 && tasks[i].relation->source == tasks[i - 1].relation->source;
      Hop& hop = *tasks[i].hop;
      hop.slots = mailbox_[kSizes + i];
      hop.slots_before = same ? slots_before : 0;
      slots_before = hop.slots_before + hop.slots;
    }
  }

  /// Scans the counts of all relations at once: the sums go on from one to the next.
  template <typename Count>
  void count_edges_of_many(const std::vector<HopTask>& tasks, const Count& count) {
    std::vector<int64_t> begins{0};
    int32_t index_bytes = 4;
    for (const HopTask& task : tasks) {
      begins.push_back(begins.back() + task.hop->num_targets);
      index_bytes = std::max(index_bytes, task.hop->index_bytes);
    }
    const int64_t total = begins.back();
    auto* const sums = static_cast<int64_t*>(arena_.take((total + 1) * sizeof(int64_t)));
    std::vector<HopOffsets> offsets;
    for (size_t i = 0; i < tasks.size(); ++i) {
      Hop& hop = *tasks[i].hop;
      hop.index_bytes = index_bytes;
      offsets.push_back({hop.offsets});
      hop.offsets = sums + begins[i];
    }
    const HopBatch batch = batch_of(tasks);
    count(batch);
    scan_offsets_cuda(sums, total, arena_, stream_);
    const auto num_tasks = static_cast<int64_t>(tasks.size());
    auto* const edges = static_cast<int64_t*>(arena_.take(num_tasks * sizeof(int64_t)));
    count_edges_cuda(sums, begins, edges, arena_, stream_);
    to_mailbox(kSizes, edges, num_tasks);
    write_offsets_cuda(batch, offsets);
    for (size_t i = 0; i < tasks.size(); ++i) tasks[i].hop->offsets = offsets[i].begin;
  }

  /// Gives memory to the slots; returns the tasks that have any.
  std::vector<HopTask> take_slots(const std::vector<HopTask>& tasks, const MakeRoom& make_room) {
    std::vector<HopTask> used;
    int64_t dense = 0;
    for (const HopTask& task : tasks) {
      if (task.hop->slots == 0) continue;
      used.push_back(task);
      if (task.hop->stride == 0) dense += task.hop->slots;
    }
    make_room(used.data(), used.size());
    if (dense == 0) return used;
    auto* owners = static_cast<uint32_t*>(arena_.take(dense * sizeof(uint32_t)));
    for (const HopTask& task : used) {
      task.hop->owners = owners;
      owners += task.hop->slots;
    }
    return used;
  }

  /// Appends the new nodes to their lists. Waits for their numbers.
  void append(const std::vector<HopTask>& tasks, const HopBatch& batch) {
    std::vector<NodeList*> lists;
    for (const HopTask& task : tasks)
      if (lists.empty() || lists.back() != task.sources) lists.push_back(task.sources);
    const auto words = static_cast<int64_t>(lists.size()) * kAppendedWords;
    auto* const sizes = static_cast<int64_t*>(arena_.take(words * sizeof(int64_t)));
    append_unique_cuda(batch, sizes);
    to_mailbox(kSizes, sizes, words);
    wait();
    for (size_t i = 0; i < lists.size(); ++i)
      lists[i]->count += mailbox_[kSizes + i * kAppendedWords];
    for (const HopTask& task : tasks)
      task.hop->num_edges = task.hop->stride > 0 ? mailbox_[kSizes + 1] : task.hop->slots;
  }

  void to_mailbox(Mail mail, const void* from, int64_t words) {
    PG_CUDA_CHECK(cudaMemcpyAsync(mailbox_ + mail, from, words * sizeof(int64_t),
                                  cudaMemcpyDeviceToHost, stream()));
    mail_under_way_ = true;
  }

  /// Waits for the copies to the mailbox; throws if a seed is no node.
  void wait() {
    PG_CUDA_CHECK(cudaStreamSynchronize(stream()));
    mail_under_way_ = false;
    const int64_t bad = mailbox_[kFirstBad];
    if (bad == kNoneBad) return;
    const Seeds& seeds = seeds_[static_cast<size_t>(bad >> kRankBits)];
    const int64_t position = bad & ((int64_t{1} << kRankBits) - 1);
    throw_bad_seed(*seeds.type, position, seed_id(seeds.list, position));
  }

  /// Copies the id of a seed to the host, for an error message.
  int64_t seed_id(const SeedList& seeds, int64_t position) const {
    int64_t id = 0;
    PG_CUDA_CHECK(
        cudaMemcpyAsync(&id, seeds.ids + position, sizeof(id), cudaMemcpyDeviceToHost, stream()));
    PG_CUDA_CHECK(cudaStreamSynchronize(stream()));
    return id;
  }

  const DeviceGuard guard_;
  const int device_;
  const uintptr_t stream_;
  const RelationView* const relations_;
  int64_t* const mailbox_;
  Arena& arena_;
  std::vector<Seeds> seeds_;
  uint64_t* first_bad_ = nullptr;
  bool mail_under_way_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device, uintptr_t stream,
                                           const RelationView* relations, int64_t* mailbox,
                                           Arena& arena) {
  return std::make_unique<CudaBackend>(device, stream, relations, mailbox, arena);
}

void place_relations_cuda(const SamplerSpec& spec, RelationView* memory, int device,
                          uintptr_t stream_address) {
  const DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  const std::vector<RelationView> views(spec.relations.begin(), spec.relations.end());
  PG_CUDA_CHECK(cudaMemcpyAsync(memory, views.data(), views.size() * sizeof(RelationView),
                                cudaMemcpyHostToDevice, stream));
  PG_CUDA_CHECK(cudaStreamSynchronize(stream));  // samples run on other streams, too
}

}  // namespace peergraph
