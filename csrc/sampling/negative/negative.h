// Negative edges: pairs of nodes drawn at random, uniformly or by weights. Optionally the nodes
// are no later than a given time, and existing edges are drawn again.
//
// Try a of negative n takes draws 2a (source) and 2a + 1 (destination) of position n.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/read_once.h"
#include "memory/table_view.h"
#include "sampling/draws/node_draw.h"
#include "store/csc_view.h"

namespace peergraph {

struct Negatives {
  int64_t count = 0;
  NodeDraw source, destination;
  bool draw_sources = true;         // false: `sources` holds the sources already
  int64_t* sources = nullptr;       // [count] user ids
  int64_t* destinations = nullptr;  // [count] user ids
  const int64_t* latest = nullptr;  // [count] latest allowed time of the nodes
  uint8_t* is_edge =
      nullptr;  // [count] 1: an existing edge, as all tries were; null: edges are allowed
  uint32_t tries = 1;
  IdMapView source_to_internal;
  IdMapView destination_to_internal;
  uint64_t seed = 0;
  uint64_t stream = 0;
};

void negatives_cpu(const CscView& csc, const Negatives& negatives, int num_threads);

#ifdef PEERGRAPH_CUDA
/// Asynchronous, in `stream` of `device`. One thread draws a negative; one warp if existing
/// edges are avoided.
void negatives_cuda(const CscView& csc, const Negatives& negatives, int device, uintptr_t stream);
#endif

/// Draws one negative. Lanes of a warp that share a negative compute the same; one lane writes.
template <typename Contains>
PG_HD void draw_negative(const CscView& csc, const Negatives& negatives, int64_t n, bool writes,
                         const Contains& contains) {
  const int64_t latest = negatives.latest == nullptr ? 0 : negatives.latest[n];
  int64_t source = negatives.draw_sources ? 0 : negatives.sources[n];
#ifndef __CUDA_ARCH__
  if (!negatives.draw_sources && !is_below(source, negatives.source.num_nodes))
    throw std::out_of_range("sources[" + std::to_string(n) + "] = " + std::to_string(source) +
                            " is out of range for " + std::to_string(negatives.source.num_nodes) +
                            " nodes");
#endif
  int64_t destination = 0;
  bool has_source = !negatives.draw_sources, has_destination = false;
  const auto is_edge = [&] {
    return contains(csc, negatives.destination_to_internal(destination),
                    negatives.source_to_internal(source));
  };
  bool edge = false;
  for (uint32_t t = 0; t < negatives.tries; ++t) {
    if (edge) {  // try both endpoints again
      has_source = !negatives.draw_sources;
      has_destination = edge = false;
    }
    const Philox4x32 block =
        draw_block(negatives.seed, negatives.stream, static_cast<uint64_t>(n), 2 * t);
    if (!has_source) {
      source = negatives.source.node(block, 0);
      has_source = negatives.source.fits(source, latest);
    }
    if (!has_destination) {
      destination = negatives.destination.node(block, 1);
      has_destination = negatives.destination.fits(destination, latest);
    }
    if (!has_source || !has_destination) continue;
    if (negatives.is_edge != nullptr) edge = is_edge();
    if (!edge) break;
  }
  if (!has_source) source = negatives.source.earliest;
  if (!has_destination) destination = negatives.destination.earliest;
  if (negatives.is_edge != nullptr && !(has_source && has_destination)) edge = is_edge();
  if (!writes) return;
  if (negatives.draw_sources) negatives.sources[n] = source;
  negatives.destinations[n] = destination;
  if (negatives.is_edge != nullptr) negatives.is_edge[n] = edge ? 1 : 0;
}

}  // namespace peergraph
