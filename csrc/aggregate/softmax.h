// Softmax over the edges of one node; all heads of an edge are adjacent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/exp.h"

namespace peergraph {

/// As softmax_by_head, for kHeads heads; 0: for `heads` heads.
template <int kHeads, int kBytes, typename Value>
PG_INLINE void softmax_of(Value* values, int64_t edges, int64_t heads, Value* tops, Value* totals) {
  // Sums of a constant number of heads stay in registers.
  Value kept[2 * kHeads + 1];
  const int64_t count = kHeads > 0 ? kHeads : heads;
  Value* const top = kHeads > 0 ? kept : tops;
  Value* const total = kHeads > 0 ? kept + kHeads : totals;
  for (int64_t h = 0; h < count; ++h) top[h] = -std::numeric_limits<Value>::infinity();
  for (int64_t h = 0; h < count; ++h) total[h] = 0;
  for (int64_t k = 0; k < edges; ++k) {
    for (int64_t h = 0; h < count; ++h) {
      const Value score = values[k * count + h];
      top[h] = score > top[h] || score != score ? score : top[h];
    }
  }
  for (int64_t k = 0; k < edges; ++k)
    for (int64_t h = 0; h < count; ++h) values[k * count + h] -= top[h];
  exp_all<kBytes>(values, edges * count);
  for (int64_t k = 0; k < edges; ++k)
    for (int64_t h = 0; h < count; ++h) total[h] += values[k * count + h];
  for (int64_t k = 0; k < edges; ++k)
    for (int64_t h = 0; h < count; ++h) values[k * count + h] /= total[h];
  std::copy(top, top + count, tops);
  std::copy(total, total + count, totals);
}

/// Replaces `values` [edges, heads] by their softmax over the edges. `tops` and `totals` [heads]
/// get the largest value and the sum of exp(value - largest). Largest values of -inf alone give
/// NaN, as in torch.
template <int kBytes, typename Value>
PG_INLINE void softmax_by_head(Value* values, int64_t edges, int64_t heads, Value* tops,
                               Value* totals) {
  switch (heads) {
    case 1:
      return softmax_of<1, kBytes>(values, edges, heads, tops, totals);
    case 4:
      return softmax_of<4, kBytes>(values, edges, heads, tops, totals);
    case 8:
      return softmax_of<8, kBytes>(values, edges, heads, tops, totals);
    default:
      return softmax_of<0, kBytes>(values, edges, heads, tops, totals);
  }
}

}  // namespace peergraph
