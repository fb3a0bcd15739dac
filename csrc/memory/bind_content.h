// The digests of tensors' memory, as Python holds them.
#pragma once

#include <vector>

#include "common/bind.h"
#include "common/check.h"
#include "common/on_device.h"
#include "memory/content_digest.h"

namespace peergraph {

/// What tensors held when their digests were written. The caller keeps the memory: of the tensors
/// while it calls, of the digests also until the work that was queued is done.
class Content {
 public:
  Content(const std::vector<TensorRef>& tensors, const std::vector<bool>& are_edge_indices,
          const TensorRef& digests) {
    PG_CHECK_ARG(tensors.size() == are_edge_indices.size(), "a flag is needed for each tensor");
    int64_t num_pieces = 0;
    for (const int64_t count : count_pieces(tensors)) num_pieces += count;
    digests_ = reinterpret_cast<PieceDigest*>(digests.int64_values("digests", 2 * num_pieces));
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (launches_.empty() || launches_.back().count == ContentSegments::kMost)
        launches_.emplace_back();
      launches_.back().add(tensors[i].data, tensors[i].num_bytes(), are_edge_indices[i]);
    }
  }

  /// The number of pieces of each tensor.
  static std::vector<int64_t> count_pieces(const std::vector<TensorRef>& tensors) {
    std::vector<int64_t> counts;
    for (const TensorRef& tensor : tensors)
      counts.push_back(ContentSegments::pieces_of_bytes(tensor.num_bytes()));
    return counts;
  }

  void write(const Launch& launch) const {
    each([&](const ContentSegments& content, PieceDigest* digests) {
      PG_ON_DEVICE(launch.device, digest_content_cpu(content, digests, launch.num_threads),
                   digest_content_cuda(content, digests, launch));
    });
  }

  /// On a GPU, where a difference is reported later, always true.
  bool is_unchanged(const Launch& launch) const {
    bool unchanged = true;
    each([&](const ContentSegments& content, const PieceDigest* digests) {
      PG_ON_DEVICE(launch.device,
                   unchanged &= is_unchanged_cpu(content, digests, launch.num_threads),
                   check_content_cuda(content, digests, launch));
    });
    return unchanged;
  }

 private:
  template <typename Body>
  void each(const Body& body) const {
    PieceDigest* digests = digests_;
    for (const ContentSegments& content : launches_) {
      body(content, digests);
      digests += content.num_pieces;
    }
  }

  PieceDigest* digests_ = nullptr;
  std::vector<ContentSegments> launches_;
};

}  // namespace peergraph
