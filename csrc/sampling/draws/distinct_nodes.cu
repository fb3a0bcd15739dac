#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/tabulate_output_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_scan.cuh>

#include "common/cuda_check.cuh"
#include "sampling/draws/distinct_nodes.h"

namespace peergraph {
namespace {

using Word = unsigned long long;
constexpr int kWordBits = 64;

__global__ void __launch_bounds__(kBlockThreads)
    mark_nodes_kernel(const int64_t* nodes, int64_t count, int64_t num_nodes, Word* words) {
  for (int64_t i = global_thread(); i < count; i += grid_threads()) {
    const int64_t node = nodes[i];
    if (node >= 0 && node < num_nodes) atomicOr(words + node / kWordBits, 1ull << node % kWordBits);
  }
}

/// The number of marks of each word, and 0 behind the last.
struct CountMarks {
  const Word* words;
  int64_t num_words;
  __device__ int64_t operator()(int64_t i) const { return i < num_words ? __popcll(words[i]) : 0; }
};

/// Writes the nodes of a word behind those of the words before it.
struct WriteNodes {
  const Word* words;
  int64_t num_words;
  int64_t* distinct;
  int64_t* total;
  __device__ void operator()(int64_t i, int64_t before) const {
    if (i == num_words) {
      *total = before;
      return;
    }
    for (Word left = words[i]; left != 0; left &= left - 1)
      distinct[before++] = i * kWordBits + __ffsll(static_cast<long long>(left)) - 1;
  }
};

}  // namespace

int64_t distinct_nodes_cuda(const int64_t* nodes, int64_t count, int64_t num_nodes,
                            int64_t* distinct, const Allocate& allocate, int device,
                            uintptr_t stream_address) {
  if (count == 0 || num_nodes == 0) return 0;
  const DeviceGuard guard(device);
  const auto stream = reinterpret_cast<cudaStream_t>(stream_address);
  const int64_t num_words = (num_nodes + kWordBits - 1) / kWordBits;
  const auto scan = [&](void* scratch, size_t& bytes, const Word* words, int64_t* total) {
    return cub::DeviceScan::ExclusiveSum(
        scratch, bytes,
        thrust::make_transform_iterator(thrust::counting_iterator<int64_t>(0),
                                        CountMarks{words, num_words}),
        thrust::make_tabulate_output_iterator(WriteNodes{words, num_words, distinct, total}),
        num_words + 1, stream);
  };
  size_t scratch_bytes = 0;
  PG_CUDA_CHECK(scan(nullptr, scratch_bytes, nullptr, nullptr));
  const auto word_bytes = static_cast<size_t>(num_words) * sizeof(Word);
  // The total has a word of its own, and the scan's memory is aligned as the allocator's is.
  constexpr size_t kAlign = 256;
  const size_t head = (word_bytes + sizeof(int64_t) + kAlign - 1) / kAlign * kAlign;
  auto* const memory = static_cast<char*>(allocate(static_cast<int64_t>(head + scratch_bytes)));
  auto* const words = reinterpret_cast<Word*>(memory);
  auto* const total = reinterpret_cast<int64_t*>(memory + word_bytes);
  PG_CUDA_CHECK(cudaMemsetAsync(words, 0, word_bytes, stream));
  mark_nodes_kernel<<<grid_for(count), kBlockThreads, 0, stream>>>(nodes, count, num_nodes, words);
  PG_LAUNCH_CHECK("mark_nodes_kernel");
  PG_CUDA_CHECK(scan(memory + head, scratch_bytes, words, total));
  int64_t found = 0;
  PG_CUDA_CHECK(cudaMemcpyAsync(&found, total, sizeof(found), cudaMemcpyDeviceToHost, stream));
  PG_CUDA_CHECK(cudaStreamSynchronize(stream));
  return found;
}

}  // namespace peergraph
