// Digests on a GPU: a block reads a piece and compares it with the digest of that piece alone, so
// that launches need no memory in common and may run at the same time, in CUDA graphs as well.
#include "common/cuda_check.cuh"
#include "common/warp.cuh"
#include "memory/content_digest.h"
#include "memory/error_slot.h"
#include "memory/piece_digest.h"

namespace peergraph {
namespace {

__device__ __forceinline__ bool is_aligned(const char* data, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

__device__ __forceinline__ void load_vector(const char* data, uint32_t (&words)[kVectorWords]) {
  const auto vector = *reinterpret_cast<const uint4*>(data);
  words[0] = vector.x;
  words[1] = vector.y;
  words[2] = vector.z;
  words[3] = vector.w;
}

/// As load_words; reads as much at a time as addresses allow.
__device__ __forceinline__ void load_part(const ContentSegments::Segment& segment, int64_t offset,
                                          uint32_t (&words)[kVectorWords]) {
  const char* data = segment.data + offset;
  const bool is_whole = offset + kVectorBytes <= segment.num_bytes;
  if (is_whole && is_aligned(data, kVectorBytes)) {
    load_vector(data, words);
  } else if (is_whole && is_aligned(data, sizeof(uint32_t))) {
#pragma unroll
    for (int i = 0; i < kVectorWords; ++i) words[i] = reinterpret_cast<const uint32_t*>(data)[i];
  } else {
    load_words(segment.data, offset, segment.num_bytes, words);
  }
}

__device__ __forceinline__ ThreadDigest digest_thread(const ContentSegments::Segment& segment,
                                                      int64_t begin) {
  const int64_t first = begin + static_cast<int64_t>(threadIdx.x) * kVectorBytes;
  constexpr int64_t kStride = int64_t{kDigestThreads} * kVectorBytes;
  uint32_t words[kVectorsOfThread][kVectorWords];
  if (begin + kPieceBytes <= segment.num_bytes && is_aligned(segment.data, kVectorBytes)) {
    // Without other ways to read between them, all loads are under way at once.
#pragma unroll
    for (int i = 0; i < kVectorsOfThread; ++i)
      load_vector(segment.data + first + i * kStride, words[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kVectorsOfThread; ++i) load_part(segment, first + i * kStride, words[i]);
  }
  ThreadDigest digest;
#pragma unroll
  for (int i = 0; i < kVectorsOfThread; ++i) digest.add(i, words[i]);
  return digest;
}

/// Writes the digest of each piece, or reports a piece that has another one; a block for a piece.
template <bool kReports>
__global__ void __launch_bounds__(kDigestThreads)
    digest_pieces(const __grid_constant__ ContentSegments content, PieceDigest* digests,
                  ErrorSlot slot) {
  constexpr int kWarps = kDigestThreads / kWarpSize;
  __shared__ PieceDigest of_warps[kWarps];
  const int64_t piece = blockIdx.x;
  const ContentSegments::Segment& segment = content.segment_of(piece);
  const ThreadDigest own = digest_thread(segment, (piece - segment.first_piece) * kPieceBytes);
  PieceDigest part = own.part(static_cast<int>(threadIdx.x));
  part.first = sum_over_groups(part.first);
  part.second = sum_over_groups(part.second);
  if (lane_id() == 0) of_warps[warp_in_block()] = part;
  __syncthreads();
  if (threadIdx.x != 0) return;
  PieceDigest digest;
  for (const PieceDigest& of_warp : of_warps) {
    digest.first += of_warp.first;
    digest.second += of_warp.second;
  }
  if constexpr (kReports) {
    if (!(digest == digests[piece]))
      record_bad_id(slot, piece, 0, 0,
                    segment.is_edge_index ? BadId::kEdgeIndex : BadId::kEdgeType);
  } else {
    digests[piece] = digest;
  }
}

template <bool kReports>
void run(const ContentSegments& content, PieceDigest* digests, const Launch& launch) {
  if (content.num_pieces == 0) return;
  const ErrorSlot slot = error_slot(launch.device);  // made before a CUDA graph is captured
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  const auto grid = static_cast<unsigned>(content.num_pieces);
  digest_pieces<kReports><<<grid, kDigestThreads, 0, stream>>>(content, digests, slot);
  PG_LAUNCH_CHECK("digest_pieces");
}

}  // namespace

void digest_content_cuda(const ContentSegments& content, PieceDigest* digests,
                         const Launch& launch) {
  run<false>(content, digests, launch);
}

void check_content_cuda(const ContentSegments& content, const PieceDigest* digests,
                        const Launch& launch) {
  run<true>(content, const_cast<PieceDigest*>(digests), launch);
}

}  // namespace peergraph
