#include "sampling/walks/random_walk.h"

#include "common/parallel.h"
#include "sampling/common/contains.cuh"
#include "sampling/walks/random_walk.cuh"

namespace peergraph {
namespace {

constexpr int64_t kWalksPerThread = 256;

}  // namespace

void random_walk_cpu(const CscView& csc, const Walks& walks, int num_threads) {
  parallel_for(walks.count, kWalksPerThread, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) take_steps(csc, walks, w, true, ContainsInTurn{});
  });
}

}  // namespace peergraph
