// Bindings of walks, personalised PageRank, negative edges and draws of nodes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "common/bind.h"
#include "common/check.h"
#include "common/on_device.h"
#include "memory/lease.h"
#include "sampling/draws/distinct_nodes.h"
#include "sampling/draws/draw_nodes.h"
#include "sampling/negative/negative.h"
#include "sampling/ppr/forward_push.h"
#include "sampling/walks/random_walk.h"

namespace py = pybind11;

namespace peergraph {
namespace {

using LeasedIdMap = Leased<IdMapView>;
using OptionalTensor = std::optional<TensorRef>;

Leases leases_of(const LeasedIdMap& first, const LeasedIdMap& second) {
  Leases leases = first.leases();
  add_leases(leases, second.leases());
  return leases;
}

Leased<Walks> make_walks(int64_t first_step, int64_t steps, const TensorRef& nodes,
                         const OptionalTensor& edge_ids, const TensorRef& positions,
                         const LeasedIdMap& to_internal, const LeasedIdMap& to_user, uint64_t seed,
                         uint64_t stream, uint64_t restart_below, int64_t restart_every, bool jump,
                         bool stay, const std::array<uint64_t, 3>& accept) {
  const int64_t count = nodes.size(0), length = nodes.size(1) - 1;
  PG_CHECK_ARG(length >= 0, "nodes must have a column for the starts");
  PG_CHECK_ARG(
      first_step >= 0 && first_step <= length && steps >= 0 && steps <= length - first_step,
      "steps outside of the walk");
  PG_CHECK_ARG(restart_every > 0, "restart_every must be positive");
  Walks walks;
  walks.count = count;
  walks.length = length;
  walks.first_step = first_step;
  walks.steps = steps;
  walks.nodes = nodes.int64_values("nodes");
  walks.edge_ids = int64_values(edge_ids, "edge_ids", count * length);
  walks.positions = positions.int64_values("positions", count);
  walks.to_internal = to_internal.unopened();
  walks.to_user = to_user.unopened();
  walks.seed = seed;
  walks.stream = stream;
  walks.restart_below = restart_below;
  walks.restart_every = restart_every;
  walks.jump = jump;
  walks.stay = stay;
  walks.accept_return = accept[0];
  walks.accept_common = accept[1];
  walks.accept_other = accept[2];
  walks.biased =
      accept != std::array<uint64_t, 3>{kProbabilityOne, kProbabilityOne, kProbabilityOne};
  // The previous node is not kept between calls.
  PG_CHECK_ARG(!walks.biased || first_step == 0, "second-order walks are taken in one call");
  return {walks, leases_of(to_internal, to_user)};
}

void random_walk(const Leased<CscView>& structure, const Leased<Walks>& wanted,
                 const Launch& launch) {
  const Opened csc(structure);
  const Opened walks(wanted);
  PG_ON_DEVICE(launch.device, random_walk_cpu(*csc, *walks, launch.num_threads),
               random_walk_cuda(*csc, *walks, launch.device, launch.stream));
}

/// (num_nodes, running sum of weights or None, times or None, earliest node).
using DrawTuple = std::tuple<int64_t, OptionalTensor, OptionalTensor, int64_t>;

NodeDraw make_draw(const DrawTuple& draw) {
  const auto& [num_nodes, ends, times, earliest] = draw;
  PG_CHECK_ARG(num_nodes >= 0 && earliest >= 0 && (num_nodes == 0 || earliest < num_nodes),
               "earliest must be a node");
  return {num_nodes, int64_values(ends, "weights", num_nodes),
          int64_values(times, "times", num_nodes), earliest};
}

Leased<Negatives> make_negatives(const DrawTuple& source, const DrawTuple& destination,
                                 bool draw_sources, const TensorRef& sources,
                                 const TensorRef& destinations, const OptionalTensor& latest,
                                 const OptionalTensor& is_edge, uint32_t tries,
                                 const LeasedIdMap& source_to_internal,
                                 const LeasedIdMap& destination_to_internal, uint64_t seed,
                                 uint64_t stream) {
  const int64_t count = sources.num_elements();
  Negatives negatives;
  negatives.count = count;
  negatives.source = make_draw(source);
  negatives.destination = make_draw(destination);
  PG_CHECK_ARG(
      count == 0 || (negatives.source.num_nodes > 0 && negatives.destination.num_nodes > 0),
      "no nodes to draw from");
  PG_CHECK_ARG(
      latest || (negatives.source.times == nullptr && negatives.destination.times == nullptr),
      "times of nodes need the latest times");
  negatives.draw_sources = draw_sources;
  negatives.sources = sources.int64_values("sources");
  negatives.destinations = destinations.int64_values("destinations", count);
  negatives.latest = int64_values(latest, "latest", count);
  negatives.is_edge = is_edge ? is_edge->byte_values("is_edge", count) : nullptr;
  negatives.tries = tries;
  negatives.source_to_internal = source_to_internal.unopened();
  negatives.destination_to_internal = destination_to_internal.unopened();
  negatives.seed = seed;
  negatives.stream = stream;
  return {negatives, leases_of(source_to_internal, destination_to_internal)};
}

void sample_negatives(const Leased<CscView>& structure, const Leased<Negatives>& wanted,
                      const Launch& launch) {
  const Opened csc(structure);
  const Opened negatives(wanted);
  PG_ON_DEVICE(launch.device, negatives_cpu(*csc, *negatives, launch.num_threads),
               negatives_cuda(*csc, *negatives, launch.device, launch.stream));
}

void forward_push(const Leased<CscView>& structure, const TensorRef& seeds, const TensorRef& nodes,
                  const TensorRef& weights, const LeasedIdMap& to_internal,
                  const LeasedIdMap& to_user, uint64_t alpha, uint64_t epsilon, int64_t most_nodes,
                  [[maybe_unused]] const py::function& allocate, const Launch& launch) {
  // Smaller numbers could be rounded to 0, and rounds would not end.
  PG_CHECK_ARG(epsilon >= uint64_t{1} << 32 && mul_high_u64(epsilon, alpha) >= uint64_t{1} << 20,
               "alpha and epsilon are too small");
  PG_CHECK_ARG(most_nodes > 0 && most_nodes <= int64_t{1} << 31, "most_nodes is out of range");
  ForwardPush push;
  push.num_seeds = seeds.num_elements();
  push.seeds = seeds.int64_values("seeds");
  push.keep = nodes.size(1);
  const int64_t results = checked_product(push.num_seeds, push.keep);
  push.nodes = nodes.int64_values("nodes", results);
  push.weights = static_cast<float*>(weights.values("weights", DType::kFloat32, results));
  push.alpha = alpha;
  push.epsilon = epsilon;
  push.most_nodes = most_nodes;
  const py::gil_scoped_release released;
  const Opened csc(structure);
  const Opened internal(to_internal), user(to_user);
  push.to_internal = *internal;
  push.to_user = *user;
  PG_ON_DEVICE(launch.device, forward_push_cpu(*csc, push, launch.num_threads),
               forward_push_cuda(*csc, push, with_gil(allocate), launch.device, launch.stream));
}

/// Draws nodes uniformly, or by the running sum of their integer weights.
void draw_nodes(int64_t num_nodes, const OptionalTensor& ends, const TensorRef& nodes,
                uint64_t seed, uint64_t stream, const Launch& launch) {
  const NodeDraw from = make_draw({num_nodes, ends, std::nullopt, 0});
  const int64_t count = nodes.num_elements();
  PG_CHECK_ARG(count == 0 || num_nodes > 0, "no nodes to draw from");
  int64_t* const drawn = nodes.int64_values("nodes");
  PG_ON_DEVICE(launch.device, draw_nodes_cpu(from, count, seed, stream, drawn, launch.num_threads),
               draw_nodes_cuda(from, count, seed, stream, drawn, launch.device, launch.stream));
}

void square_keys(const TensorRef& nodes, const TensorRef& weights, uint64_t seed, uint64_t stream,
                 const TensorRef& keys, const Launch& launch) {
  SquareDraw draw;
  draw.count = nodes.num_elements();
  draw.nodes = nodes.int64_values("nodes");
  draw.weights = weights.int64_values("weights", draw.count);
  draw.seed = seed;
  draw.stream = stream;
  draw.keys = static_cast<double*>(keys.values("keys", DType::kFloat64, draw.count));
  PG_ON_DEVICE(launch.device, square_keys_cpu(draw, launch.num_threads),
               square_keys_cuda(draw, launch.device, launch.stream));
}

int64_t distinct_nodes(const TensorRef& nodes, int64_t num_nodes, const TensorRef& distinct,
                       [[maybe_unused]] const py::function& allocate, const Launch& launch) {
  const int64_t count = nodes.num_elements();
  const int64_t* const from = nodes.int64_values("nodes");
  int64_t* const to = distinct.int64_values("distinct", count);
  const py::gil_scoped_release released;
  PG_ON_DEVICE(launch.device, return distinct_nodes_cpu(from, count, num_nodes, to),
               return distinct_nodes_cuda(from, count, num_nodes, to, with_gil(allocate),
                                          launch.device, launch.stream));
}

}  // namespace

void register_walks(py::module_& m) {
  py::class_<Leased<Walks>>(m, "Walks")
      .def(py::init(&make_walks), py::kw_only(), py::arg("first_step"), py::arg("steps"),
           py::arg("nodes"), py::arg("edge_ids"), py::arg("positions"), py::arg("to_internal"),
           py::arg("to_user"), py::arg("seed"), py::arg("stream"), py::arg("restart_below"),
           py::arg("restart_every"), py::arg("jump"), py::arg("stay"), py::arg("accept"));
  py::class_<Leased<Negatives>>(m, "Negatives")
      .def(py::init(&make_negatives), py::kw_only(), py::arg("source"), py::arg("destination"),
           py::arg("draw_sources"), py::arg("sources"), py::arg("destinations"), py::arg("latest"),
           py::arg("is_edge"), py::arg("tries"), py::arg("source_to_internal"),
           py::arg("destination_to_internal"), py::arg("seed"), py::arg("stream"));
  m.def("random_walk", &random_walk, ReleaseGil(), py::arg("csc"), py::arg("walks"),
        py::arg("launch"));
  m.def("forward_push", &forward_push, py::arg("csc"), py::arg("seeds"), py::arg("nodes"),
        py::arg("weights"), py::arg("to_internal"), py::arg("to_user"), py::arg("alpha"),
        py::arg("epsilon"), py::arg("most_nodes"), py::arg("allocate"), py::arg("launch"));
  m.def("draw_nodes", &draw_nodes, ReleaseGil(), py::arg("num_nodes"), py::arg("ends"),
        py::arg("nodes"), py::arg("seed"), py::arg("stream"), py::arg("launch"));
  m.def("square_keys", &square_keys, ReleaseGil(), py::arg("nodes"), py::arg("weights"),
        py::arg("seed"), py::arg("stream"), py::arg("keys"), py::arg("launch"));
  m.def("distinct_nodes", &distinct_nodes, py::arg("nodes"), py::arg("num_nodes"),
        py::arg("distinct"), py::arg("allocate"), py::arg("launch"));
  m.def("sample_negatives", &sample_negatives, ReleaseGil(), py::arg("csc"), py::arg("negatives"),
        py::arg("launch"));
}

}  // namespace peergraph
