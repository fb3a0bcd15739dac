#include "common/cuda_check.cuh"
#include "common/partition_point.h"
#include "common/warp.cuh"
#include "sampling/common/hop_batch.cuh"
#include "sampling/common/thread_group.cuh"
#include "sampling/weighted_temporal/choose.h"
#include "sampling/weighted_temporal/time_order.h"

namespace peergraph {
namespace {

/// How many times of a list in the order of its times are not after `limit`.
__device__ int64_t count_until(const Candidates& candidates, int64_t limit) {
  return partition_point(int64_t{0}, static_cast<int64_t>(candidates.list.degree),
                         [&](int64_t i) { return candidates.time(i) <= limit; });
}

/// One thread for each target.
template <typename Hops>
__global__ void __launch_bounds__(kBlockThreads) bisect_kernel(const __grid_constant__ Hops hops) {
  const HopPart part = hops.part();
  const Hop& hop = part.hop;
  const auto& [csc, choice] = hops.relation(part);
  for (int64_t t = part.thread(); t < hop.num_targets; t += part.threads()) {
    const Candidates candidates = candidates_of(csc, choice, hop, t, hop.whole_list(csc, t));
    const TimeWindow& window = candidates.window;
    const int64_t until = count_until(candidates, window.last);
    const int64_t before =
        window.first == INT64_MIN ? 0 : count_until(candidates, window.first - 1);
    const int64_t admitted = until > before ? until - before : 0;
    hop.parts[t] = part_to_sample(choice, hop.fanout, before, admitted);
  }
}

/// One warp for each list.
__global__ void __launch_bounds__(kBlockThreads)
    count_falls_kernel(const __grid_constant__ RelationView relation, int64_t* failures) {
  const auto& [csc, choice] = relation;
  const int64_t warps = int64_t{gridDim.x} * kBlockThreads / kWarpSize;
  const int64_t own = (int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) / kWarpSize;
  for (int64_t row = own; row < csc.map.rows; row += warps) {
    const Candidates candidates{csc, choice, {}, 0, csc.neighbors(row), {}};
    for (int64_t i = lane_id(); i + 1 < candidates.list.degree; i += kWarpSize)
      if (candidates.time(i) > candidates.time(i + 1)) *failures = 1;
  }
}

}  // namespace

void bisect_lists_cuda(const HopBatch& batch) {
  const auto blocks_of = [](const Hop& hop, const RelationView&) -> int64_t {
    return hop.parts != nullptr && hop.num_targets > 0 ? grid_for(hop.num_targets) : 0;
  };
  launch_for<OneHopAndRelation>(batch, blocks_of, [&](const auto& hops, unsigned blocks, size_t) {
    bisect_kernel<<<blocks, kBlockThreads, 0, as_stream(batch.stream())>>>(hops);
    PG_LAUNCH_CHECK("bisect_kernel");
  });
}

bool lists_in_order_cuda(const CscView& csc, const Choice& choice, int64_t* failures, int device,
                         uintptr_t stream_address) {
  if (csc.map.rows == 0) return true;
  const DeviceGuard guard(device);
  const cudaStream_t stream = as_stream(stream_address);
  PG_CUDA_CHECK(cudaMemsetAsync(failures, 0, sizeof(int64_t), stream));
  const auto blocks = static_cast<unsigned>(grid_for(csc.map.rows));
  count_falls_kernel<<<blocks, kBlockThreads, 0, stream>>>(RelationView{csc, choice}, failures);
  PG_LAUNCH_CHECK("count_falls_kernel");
  int64_t failed = 0;
  PG_CUDA_CHECK(cudaMemcpyAsync(&failed, failures, sizeof(failed), cudaMemcpyDeviceToHost, stream));
  PG_CUDA_CHECK(cudaStreamSynchronize(stream));
  return failed == 0;
}

}  // namespace peergraph
