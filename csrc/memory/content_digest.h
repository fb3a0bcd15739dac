// Digests of the memory of tensors, by which writes are seen that torch does not count.
#pragma once

#include <cstdint>

#include "common/host_device.h"
#include "common/launch.h"
#include "common/partition_point.h"

namespace peergraph {

/// Of one piece of memory: different pieces have equal digests with a chance of about 2^-64.
struct PieceDigest {
  uint64_t first = 0;
  uint64_t second = 0;

  PG_HD bool operator==(const PieceDigest& other) const {
    return first == other.first && second == other.second;
  }
};

constexpr int64_t kPieceBytes = 16384;

/// Memory that is read in pieces; the last piece of each segment may be shorter.
struct ContentSegments {
  static constexpr int kMost = 120;  // what fits the parameters of a kernel

  struct Segment {
    const char* data;
    int64_t num_bytes;
    int64_t first_piece;  // of the pieces of all segments
    bool is_edge_index;   // else another tensor that a structure is made of
  };

  int count = 0;
  int64_t num_pieces = 0;
  Segment segments[kMost] = {};

  void add(const void* data, int64_t num_bytes, bool is_edge_index) {
    segments[count++] = {static_cast<const char*>(data), num_bytes, num_pieces, is_edge_index};
    num_pieces += pieces_of_bytes(num_bytes);
  }

  PG_HD const Segment& segment_of(int64_t piece) const {
    // The last one that begins by this piece: segments without bytes have no pieces.
    const auto begins = [&](int i) { return segments[i].first_piece <= piece; };
    return segments[partition_point(1, count, begins) - 1];
  }

  static int64_t pieces_of_bytes(int64_t num_bytes) {
    return (num_bytes + kPieceBytes - 1) / kPieceBytes;
  }
};

/// Writes the digest of each piece.
void digest_content_cpu(const ContentSegments& content, PieceDigest* digests, int num_threads);

/// Returns whether all pieces have these digests.
bool is_unchanged_cpu(const ContentSegments& content, const PieceDigest* digests, int num_threads);

#ifdef PEERGRAPH_CUDA
/// As on the CPU, with the same digests; asynchronous.
void digest_content_cuda(const ContentSegments& content, PieceDigest* digests,
                         const Launch& launch);

/// Asynchronous: a piece with another digest is reported to the device's error slot.
void check_content_cuda(const ContentSegments& content, const PieceDigest* digests,
                        const Launch& launch);
#endif

}  // namespace peergraph
