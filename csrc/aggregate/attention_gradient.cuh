// What the kernels of attention's gradients read of both ends of an edge, and what they write.
#pragma once

#include <type_traits>

#include "aggregate/attention.cuh"

namespace peergraph {
namespace {

/// The node whose edges a warp walks.
enum class By { kDestination, kSource };

/// The values of the source that an edge's gradient needs.
template <typename T, int kVec, int kItems>
struct SourceEnd {
  Pack<T, kVec> x[kItems];
  AccumulatorOf<T> left[kItems];

  template <bool kDynamic, typename Lanes>
  __device__ __forceinline__ void load(const AttentionBackward& op, int64_t node,
                                       const Lanes& lane) {
    load_row(op.inputs.x, node, op.inputs, lane, x);
    if constexpr (!kDynamic) load_heads(op.inputs.left, node, op.inputs, lane, left);
  }
};

/// The values of the destination that an edge's gradient needs.
template <typename T, int kVec, int kItems>
struct DestinationEnd {
  Pack<T, kVec> grad[kItems];
  Pack<T, kVec> wide_right[kItems];
  AccumulatorOf<T> right[kItems];
  AccumulatorOf<T> lse[kItems];
  AccumulatorOf<T> delta[kItems];

  template <bool kDynamic, typename Lanes>
  __device__ __forceinline__ void load(const AttentionBackward& op, int64_t node,
                                       const Lanes& lane) {
    load_row(op.grad, node, op.inputs, lane, grad);
    load_heads(op.lse, node, op.inputs, lane, lse);
    load_heads(op.delta, node, op.inputs, lane, delta);
    if constexpr (kDynamic) {
      load_row(op.inputs.right, node, op.inputs, lane, wide_right);
    } else {
      load_heads(op.inputs.right, node, op.inputs, lane, right);
    }
  }
};

/// `X` is the element of grad_x: the features' where a warp sums it, the accumulators' for atomics.
template <typename Value, typename X>
struct GradOutput {
  X* x;
  Value* left;
  Value* right;
  Value* att;
  /// [slots of the queue, width]: the node's gradients for each chunk.
  Value* partial;
  int64_t width;
};

template <By kBy, typename T>
using GradOutputOf =
    GradOutput<AccumulatorOf<T>,
               typename std::conditional<kBy == By::kSource, T, AccumulatorOf<T>>::type>;

}  // namespace
}  // namespace peergraph
