// Softmax over the edges of one node; all heads of an edge are adjacent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/exp.h"

namespace peergraph {

/// Calls body(constant number of heads) for the most frequent numbers, whose sums stay in
/// registers; for others 0.
template <typename Body>
PG_INLINE void with_heads(int64_t heads, const Body& body) {
  if (heads == 1) return body(std::integral_constant<int, 1>{});
  if (heads == 4) return body(std::integral_constant<int, 4>{});
  if (heads == 8) return body(std::integral_constant<int, 8>{});
  body(std::integral_constant<int, 0>{});
}

/// Subtracts the largest value of each head, which goes to `tops`.
template <int kHeads, typename Value>
PG_INLINE void subtract_tops(Value* values, int64_t edges, int64_t heads, Value* tops) {
  Value registers[kHeads + 1];
  const int64_t count = kHeads > 0 ? kHeads : heads;
  Value* const top = kHeads > 0 ? registers : tops;
  for (int64_t h = 0; h < count; ++h) top[h] = -std::numeric_limits<Value>::infinity();
  for (int64_t k = 0; k < edges; ++k) {
    for (int64_t h = 0; h < count; ++h) {
      const Value score = values[k * count + h];
      top[h] = score > top[h] || score != score ? score : top[h];
    }
  }
  for (int64_t k = 0; k < edges; ++k)
    for (int64_t h = 0; h < count; ++h) values[k * count + h] -= top[h];
  if (kHeads > 0) std::copy(top, top + count, tops);
}

/// Divides by the sum of each head, which goes to `totals`.
template <int kHeads, typename Value>
PG_INLINE void divide_by_totals(Value* values, int64_t edges, int64_t heads, Value* totals) {
  Value registers[kHeads + 1];
  const int64_t count = kHeads > 0 ? kHeads : heads;
  Value* const total = kHeads > 0 ? registers : totals;
  for (int64_t h = 0; h < count; ++h) total[h] = 0;
  for (int64_t k = 0; k < edges; ++k)
    for (int64_t h = 0; h < count; ++h) total[h] += values[k * count + h];
  for (int64_t k = 0; k < edges; ++k)
    for (int64_t h = 0; h < count; ++h) values[k * count + h] /= total[h];
  if (kHeads > 0) std::copy(total, total + count, totals);
}

/// Replaces `values` [edges, heads] by their softmax over the edges. `tops` and `totals` [heads]
/// get the largest value and the sum of exp(value - largest). Largest values of -inf alone give
/// NaN, as in torch.
template <int kBytes, typename Value>
PG_INLINE void softmax_by_head(Value* values, int64_t edges, int64_t heads, Value* tops,
                               Value* totals) {
  with_heads(heads, [&](auto constant)
                        PG_INLINED { subtract_tops<constant>(values, edges, heads, tops); });
  exp_all<kBytes>(values, edges * heads);
  with_heads(heads, [&](auto constant)
                        PG_INLINED { divide_by_totals<constant>(values, edges, heads, totals); });
}

}  // namespace peergraph
