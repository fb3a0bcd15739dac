#include <vector>

#include "common/cuda_check.cuh"
#include "sampling/append_unique/append_unique.h"
#include "sampling/khop/backend.h"
#include "sampling/khop/capacity.h"
#include "sampling/khop/write_sample.h"
#include "sampling/neighbor/neighbor.h"
#include "sampling/subgraph/induced.h"
#include "sampling/weighted_temporal/choose.h"

namespace peergraph {
namespace {

// Seeds have a rank: the number of their list in the high bits, the position in the list in the
// low bits. The least rank is the first bad seed.
constexpr int kRankBits = 40;

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, uintptr_t stream, int64_t* mailbox, Arena& arena)
      : guard_(device), stream_(stream), mailbox_(mailbox), arena_(arena) {
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

  void plan(const RelationSpec& relation, Hop& hop) override {
    if (reserves_by_fanout(hop.num_targets, hop.fanout)) {
      hop.stride = hop.fanout;
      hop.slots = hop.num_targets * hop.fanout;
      return;
    }
    if (relation.choice.is_uniform_without_replacement())
      count_neighbors_cuda(relation.csc, hop, stream_);
    else
      count_choices_cuda(relation.csc, relation.choice, hop, stream_);
    scan_offsets(hop);
  }

  void sample_neighbors(const RelationSpec& relation, Hop& hop, NodeList& sources) override {
    if (hop.stride == 0) take_owners(hop);
    if (relation.choice.is_uniform_without_replacement())
      sample_neighbors_cuda(relation.csc, hop, sources.index, arena_, stream_);
    else
      choose_neighbors_cuda(relation.csc, relation.choice, hop, sources.index, stream_);
    append_unique_cuda(hop, sources, arena_, stream_);
    to_mailbox(kEdges, hop.offsets + hop.num_targets, 2);
    wait();
    hop.num_edges = mailbox_[kEdges];
    sources.count += mailbox_[kNewNodes];
  }

  void plan_induced(const RelationSpec& relation, Hop& hop, const NodeIndex& sources) override {
    count_induced_cuda(relation.csc, relation.choice, hop, sources, stream_);
    scan_offsets(hop);
  }

  void induce(const RelationSpec& relation, Hop& hop, const NodeIndex& sources) override {
    take_owners(hop);
    induce_cuda(relation.csc, relation.choice, hop, sources, stream_);
  }

  void write_edges(const Hop& hop, const EdgeOutput& out) override {
    write_edges_cuda(hop, out, stream_);
  }

  void write_nodes(const NodeTypeSpec& type, const NodeList& nodes,
                   const NodesResult& out) override {
    write_nodes_cuda(type, nodes, false, out, stream_);
  }

  void finish() override {
    if (mail_under_way_) wait();
  }

 private:
  enum Mail { kEdges = 0, kNewNodes = 1, kFirstBad = 2 };
  static constexpr int64_t kNoneBad = -1;

  struct Seeds {
    const NodeTypeSpec* type;
    SeedList list;
  };

  cudaStream_t stream() const { return reinterpret_cast<cudaStream_t>(stream_); }

  /// Replaces counts by their exclusive sums; waits for their total, the number of slots.
  void scan_offsets(Hop& hop) {
    scan_offsets_cuda(hop, arena_, stream_);
    to_mailbox(kEdges, hop.offsets + hop.num_targets, 1);
    wait();
    hop.slots = mailbox_[kEdges];
  }

  void take_owners(Hop& hop) {
    hop.owners = static_cast<uint32_t*>(arena_.take(hop.slots * sizeof(uint32_t)));
  }

  void to_mailbox(Mail mail, const void* from, int words) {
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
  const uintptr_t stream_;
  int64_t* const mailbox_;
  Arena& arena_;
  std::vector<Seeds> seeds_;
  uint64_t* first_bad_ = nullptr;
  bool mail_under_way_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int device, uintptr_t stream, int64_t* mailbox,
                                           Arena& arena) {
  return std::make_unique<CudaBackend>(device, stream, mailbox, arena);
}

}  // namespace peergraph
