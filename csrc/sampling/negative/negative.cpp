#include "sampling/negative/negative.h"

#include "common/parallel.h"
#include "sampling/common/contains.cuh"

namespace peergraph {
namespace {

constexpr int64_t kNegativesPerThread = 2048;

}  // namespace

void negatives_cpu(const CscView& csc, const Negatives& negatives, int num_threads) {
  parallel_for(negatives.count, kNegativesPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) draw_negative(csc, negatives, n, true, ContainsInTurn{});
  });
}

}  // namespace peergraph
