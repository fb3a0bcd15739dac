#include "memory/content_digest.h"

#include <atomic>

#include "common/parallel.h"
#include "memory/piece_digest.h"

namespace peergraph {
namespace {

constexpr int64_t kPiecesOfTask = 16;

PieceDigest digest_piece(const ContentSegments& content, int64_t piece) {
  const ContentSegments::Segment& segment = content.segment_of(piece);
  const int64_t begin = (piece - segment.first_piece) * kPieceBytes;
  PieceDigest digest;
  for (int thread = 0; thread < kDigestThreads; ++thread) {
    ThreadDigest own;
    for (int i = 0; i < kVectorsOfThread; ++i) {
      uint32_t words[kVectorWords];
      const int64_t vector = static_cast<int64_t>(i) * kDigestThreads + thread;
      load_words(segment.data, begin + vector * kVectorBytes, segment.num_bytes, words);
      own.add(i, words);
    }
    const PieceDigest part = own.part(thread);
    digest.first += part.first;
    digest.second += part.second;
  }
  return digest;
}

}  // namespace

void digest_content_cpu(const ContentSegments& content, PieceDigest* digests, int num_threads) {
  const auto digest = [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) digests[piece] = digest_piece(content, piece);
  };
  parallel_for(content.num_pieces, kPiecesOfTask, num_threads, digest, torch_team());
}

bool is_unchanged_cpu(const ContentSegments& content, const PieceDigest* digests, int num_threads) {
  std::atomic<bool> unchanged{true};
  const auto compare = [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end && unchanged; ++piece)
      if (!(digest_piece(content, piece) == digests[piece])) unchanged = false;
  };
  parallel_for(content.num_pieces, kPiecesOfTask, num_threads, compare, torch_team());
  return unchanged;
}

}  // namespace peergraph
