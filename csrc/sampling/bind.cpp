// Bindings of neighbour sampling.
#include "common/bind.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/on_device.h"
#include "memory/lease.h"
#include "sampling/append_unique/node_map.h"
#include "sampling/khop/backend.h"
#include "sampling/khop/khop.h"
#include "sampling/static_shape/static_shape.h"
#include "sampling/weighted_temporal/time_order.h"

namespace py = pybind11;

namespace peergraph {
namespace {

using LeasedIdMap = Leased<IdMapView>;
using LeasedSpec = Leased<SamplerSpec>;
using NodeTypeTuple = std::tuple<std::string, int64_t, LeasedIdMap, LeasedIdMap>;
using RelationTuple = std::tuple<int, int, Leased<CscView>, std::vector<int64_t>, Leased<Choice>>;
using OptionalTensor = std::optional<TensorRef>;
using SeedTuple = std::tuple<int, TensorRef>;
using PaddedSeedTuple = std::tuple<int, TensorRef, OptionalTensor>;
using Bounds = std::vector<std::vector<int64_t>>;

/// Item sizes of 0 stand for no weights or no times.
Leased<Choice> make_choice(bool replace, bool last, const Leased<TableView>& weights,
                           int weight_bytes, const Leased<TableView>& times, int time_bytes,
                           bool edge_time, int64_t window, bool per_source, bool layer_dependency,
                           bool skip_zero_weights) {
  const auto is_size = [](int bytes) { return bytes == 0 || bytes == 4 || bytes == 8; };
  PG_CHECK_ARG((weight_bytes == 1 || is_size(weight_bytes)) && is_size(time_bytes),
               "weights have 1, 4 or 8 bytes, times have 4 or 8");
  Choice choice;
  choice.replace = replace;
  choice.last = last;
  choice.weights = weights.unopened();
  choice.weight_bytes = weight_bytes;
  choice.times = times.unopened();
  choice.time_bytes = time_bytes;
  choice.edge_time = edge_time;
  choice.window = window;
  choice.per_source = per_source;
  choice.layer_dependency = layer_dependency;
  choice.skip_zero_weights = skip_zero_weights;
  Leases leases = weights.leases();
  add_leases(leases, times.leases());
  return {choice, std::move(leases)};
}

LeasedSpec make_spec(const std::vector<NodeTypeTuple>& node_types,
                     const std::vector<RelationTuple>& relations, bool expand_all, bool disjoint,
                     bool induced, bool edge_ids, bool duplicate_counts, int index_bytes) {
  SamplerSpec spec;
  Leases leases;  // the structures' leases first: their error after a close names the store
  for (const auto& [source, destination, csc, fanouts, choice] : relations) {
    spec.relations.push_back(
        {{csc.unopened(), choice.unopened()}, source, destination, fanouts, {}});
    add_leases(leases, csc.leases());
    add_leases(leases, choice.leases());
  }
  for (const auto& [name, num_nodes, to_internal, to_user] : node_types) {
    spec.node_types.push_back({name, num_nodes, to_internal.unopened(), to_user.unopened()});
    add_leases(leases, to_internal.leases());
    add_leases(leases, to_user.leases());
  }
  if (!spec.relations.empty())
    spec.num_hops = static_cast<int>(spec.relations.front().fanouts.size());
  const int num_types = static_cast<int>(node_types.size());
  for (RelationSpec& r : spec.relations) {
    PG_CHECK_ARG(static_cast<int>(r.fanouts.size()) == spec.num_hops, "fanouts differ in length");
    PG_CHECK_ARG(
        r.source >= 0 && r.source < num_types && r.destination >= 0 && r.destination < num_types,
        "a relation names a node type that does not exist");
    r.choice.relations = static_cast<int64_t>(relations.size());
    r.choice.take_internal_ids(spec.node_types[r.source].to_internal,
                               spec.node_types[r.source].to_user);
  }
  PG_CHECK_ARG(index_bytes == 4 || index_bytes == 8, "index_bytes must be 4 or 8");
  spec.expand_all = expand_all;
  spec.disjoint = disjoint;
  spec.induced = induced;
  spec.edge_ids = edge_ids;
  spec.duplicate_counts = duplicate_counts;
  spec.index_bytes = index_bytes;
  return {std::move(spec), std::move(leases)};
}

/// A sampler of the nodes that walks visit most, for each node so far.
LeasedSpec make_visit_spec(const NodeTypeTuple& node_type,
                           const std::vector<Leased<CscView>>& metapath, int64_t num_walks,
                           int64_t walk_length, int64_t num_neighbors, int64_t num_layers,
                           uint64_t restart_below, uint64_t stream) {
  PG_CHECK_ARG(!metapath.empty(), "metapath must have a relation");
  PG_CHECK_ARG(num_walks > 0 && walk_length > 0 && num_neighbors > 0 && num_layers >= 0,
               "numbers of walks, visits and neighbours must be positive");
  VisitChoice choice;
  choice.num_walks = num_walks;
  choice.walk_length = walk_length;
  choice.restart_below = restart_below;
  choice.stream = stream;
  PG_CHECK_ARG(checked_product(num_walks, walk_length) < int64_t{1} << 31,
               "visits for one target must be below 2^31");
  Leases leases;
  for (const Leased<CscView>& csc : metapath) {
    choice.relations.push_back(csc.unopened());
    add_leases(leases, csc.leases());
  }
  const auto& [name, num_nodes, to_internal, to_user] = node_type;
  add_leases(leases, to_internal.leases());
  add_leases(leases, to_user.leases());
  SamplerSpec spec;
  spec.node_types.push_back({name, num_nodes, to_internal.unopened(), to_user.unopened()});
  const int64_t fanout = std::min(num_neighbors, choice.visits());
  RelationSpec relation;
  relation.csc = choice.relations.back();
  relation.fanouts.assign(static_cast<size_t>(num_layers), fanout);
  relation.visits = std::move(choice);
  spec.relations.push_back(std::move(relation));
  spec.num_hops = static_cast<int>(num_layers);
  spec.expand_all = true;
  return {std::move(spec), std::move(leases)};
}

std::vector<SeedList> make_seeds(const SamplerSpec& spec, const std::vector<SeedTuple>& seeds) {
  std::vector<SeedList> lists;
  for (const auto& [type, ids] : seeds) {
    PG_CHECK_ARG(type >= 0 && static_cast<size_t>(type) < spec.node_types.size(),
                 "seeds of a node type that does not exist");
    lists.push_back({type, ids.int64_values("seeds"), ids.num_elements()});
  }
  return lists;
}

void check_map_count(const SamplerSpec& spec, size_t maps) {
  PG_CHECK_ARG(spec.disjoint || maps == spec.node_types.size(),
               "one direct map for each node type");
}

void check_maps(const SamplerSpec& spec, const std::vector<NodeMap*>& maps) {
  check_map_count(spec, maps.size());
  for (size_t type = 0; type < maps.size() && !spec.disjoint; ++type)
    PG_CHECK_ARG(
        maps[type] != nullptr && maps[type]->num_nodes() == spec.node_types[type].num_nodes,
        "a direct map must have a word for each node");
}

/// Bytes of what kernels read of the relations, if there are several.
int64_t relation_bytes(const SamplerSpec& spec) {
  return static_cast<int64_t>(spec.relations.size() * sizeof(RelationView));
}

using AllocateArrays =
    py::typing::Callable<py::typing::Tuple<py::int_, py::ellipsis>(py::int_, py::int_, py::int_)>;

/// Calls `allocate(nodes, edges, offsets)`, which returns the addresses of the nodes, their batch
/// and duplicates, the edge index, the edge ids and the offsets; 0 for those that are not returned.
AllocateResult result_with_gil(const AllocateArrays& allocate) {
  return [&allocate](const ResultSizes& sizes, SampleResult& result) {
    py::gil_scoped_acquire gil;
    const auto [nodes, batch, duplicates, edge_index, edge_ids, offsets] =
        allocate(sizes.nodes, sizes.edges, sizes.offsets).cast<std::array<uintptr_t, 6>>();
    result.nodes = {pointer<int64_t>(nodes), pointer<int64_t>(batch), pointer<int32_t>(duplicates)};
    result.edge_index = pointer(edge_index);
    result.edge_ids = pointer<int64_t>(edge_ids);
    return pointer<int64_t>(offsets);
  };
}

SeedTimes times_of(const OptionalTensor& seed_times, const OptionalTensor& seed_starts,
                   int64_t num_seeds) {
  return {int64_values(seed_times, "seed_times", num_seeds),
          int64_values(seed_starts, "seed_starts", num_seeds)};
}

/// Whether no list of a relation has a time before the one that precedes it. `word`: one word of
/// the device's memory.
bool lists_in_order(const LeasedSpec& leased, size_t relation,
                    [[maybe_unused]] const TensorRef& word, const Launch& launch) {
  const Opened opened(leased);
  PG_CHECK_ARG(relation < opened->relations.size(), "a relation that does not exist");
  const RelationSpec& spec = opened->relations[relation];
  PG_CHECK_ARG(spec.choice.timed(), "the relation has no times");
  const py::gil_scoped_release released;
  PG_ON_DEVICE(launch.device, return lists_in_order_cpu(spec.csc, spec.choice, launch.num_threads),
               return lists_in_order_cuda(spec.csc, spec.choice, word.int64_values("word"),
                                          launch.device, launch.stream));
}

void set_in_order(LeasedSpec& leased, size_t relation) {
  SamplerSpec spec = leased.unopened();
  PG_CHECK_ARG(relation < spec.relations.size(), "a relation that does not exist");
  spec.relations[relation].choice.in_order = true;
  leased = {std::move(spec), leased.leases()};
}

/// Samples without the GIL; only the allocators hold it. Returns counts, and the bytes of scratch
/// memory with which no other would be allocated.
py::tuple sample_khop_tensors(const LeasedSpec& leased, const std::vector<SeedTuple>& seeds,
                              uint64_t seed, const OptionalTensor& seed_times,
                              const OptionalTensor& seed_starts, const std::vector<NodeMap*>& maps,
                              const OptionalTensor& mailbox, const OptionalTensor& scratch,
                              const py::function& allocate, const AllocateArrays& allocate_result,
                              const Launch& launch) {
  const Opened opened(leased);
  const SamplerSpec& spec = *opened;
  check_maps(spec, maps);
  const Allocate allocate_with_gil = with_gil(allocate);
  const AllocateResult allocate_result_with_gil = result_with_gil(allocate_result);
  SampleResult result;
  int64_t scratch_bytes = 0;
  {
    py::gil_scoped_release released;
    Arena arena(allocate_with_gil, pointer(scratch), scratch ? scratch->num_bytes() : 0);
    int64_t* const words = int64_values(mailbox, "mailbox", mailbox_words(spec));
    const auto backend = make_backend(spec, launch, words, arena);
    const std::vector<SeedList> lists = make_seeds(spec, seeds);
    int64_t num_seeds = 0;
    for (const SeedList& list : lists) num_seeds += list.count;
    result = sample_khop(spec, lists, seed, times_of(seed_times, seed_starts, num_seeds), maps,
                         allocate_result_with_gil, arena, *backend);
    scratch_bytes = arena.bytes_needed();
  }
  return py::make_tuple(result.num_nodes, result.num_edges, result.first_target, result.num_targets,
                        scratch_bytes);
}

#ifdef PEERGRAPH_CUDA
/// Writes what kernels read of the relations into `memory`, which must outlive the sampler.
void place_relations(LeasedSpec& leased, const TensorRef& memory, const Launch& launch) {
  SamplerSpec spec = leased.unopened();
  const int64_t bytes = relation_bytes(spec);
  PG_CHECK_ARG(memory.num_elements() * memory.item_bytes >= bytes,
               "memory: expected " + std::to_string(bytes) + " bytes");
  auto* const views = pointer<RelationView>(memory);
  place_relations_cuda(spec, views, launch.device, launch.stream);
  spec.relations_on_device = views;
  leased = {std::move(spec), leased.leases()};
}

std::vector<PaddedSeeds> make_padded_seeds(const SamplerSpec& spec,
                                           const std::vector<PaddedSeedTuple>& seeds) {
  std::vector<PaddedSeeds> lists;
  for (const auto& [type, ids, count] : seeds) {
    PG_CHECK_ARG(type >= 0 && static_cast<size_t>(type) < spec.node_types.size(),
                 "seeds of a node type that does not exist");
    lists.push_back(
        {type, ids.int64_values("seeds"), ids.num_elements(), int64_values(count, "counts", 1)});
  }
  return lists;
}

void check_bounds(const SamplerSpec& spec, const Bounds& bounds, size_t lists) {
  PG_CHECK_ARG(bounds.size() == lists, "one list of bounds for each type");
  for (const auto& of_type : bounds) {
    PG_CHECK_ARG(of_type.size() == static_cast<size_t>(spec.num_hops), "one bound for each hop");
    for (int64_t bound : of_type) PG_CHECK_ARG(bound >= 0, "bounds must not be negative");
  }
}

uintptr_t address_of(const void* at) { return reinterpret_cast<uintptr_t>(at); }

/// Addresses of the arrays of a static shape, then counts.
py::tuple to_python(const SampleResult& result) {
  py::list offsets;
  for (const int64_t* of_hop : result.offsets) offsets.append(address_of(of_hop));
  return py::make_tuple(address_of(result.nodes.ids), address_of(result.nodes.batch),
                        address_of(result.nodes.duplicates), address_of(result.edge_index),
                        address_of(result.edge_ids), std::move(offsets), result.num_nodes,
                        result.num_edges, result.first_target, result.num_targets);
}

/// As sample, in a static shape; the last item is the address of the counts.
py::tuple sample_static_shape(const LeasedSpec& leased, const std::vector<PaddedSeedTuple>& seeds,
                              uint64_t seed, const OptionalTensor& seed_on_device,
                              const OptionalTensor& seed_times, const OptionalTensor& seed_starts,
                              const std::vector<TensorRef>& direct, const Bounds& max_nodes,
                              const Bounds& max_edges, bool reported, bool valid_padding,
                              const py::function& allocate, const Launch& launch) {
  const Opened opened(leased);
  const SamplerSpec& spec = *opened;
  for (const RelationSpec& relation : spec.relations)
    PG_CHECK_ARG(!relation.visits, "samples of walks have no static shape");
  check_bounds(spec, max_nodes, spec.node_types.size());
  check_bounds(spec, max_edges, spec.relations.size());
  check_map_count(spec, direct.size());
  PG_CHECK_ARG(direct.size() <= spec.node_types.size(), "one direct map for each node type");
  std::vector<uint32_t*> maps;
  for (size_t type = 0; type < direct.size(); ++type) {
    PG_CHECK_ARG(direct[type].num_elements() == spec.node_types[type].num_nodes + 1,
                 "direct: one word more than nodes");
    maps.push_back(reinterpret_cast<uint32_t*>(direct[type].int32_values("direct")));
  }
  const Allocate allocate_with_gil = with_gil(allocate);
  StaticShapeResult result;
  {
    py::gil_scoped_release released;
    Arena arena(allocate_with_gil);
    const std::vector<PaddedSeeds> lists = make_padded_seeds(spec, seeds);
    int64_t num_seeds = 0;
    for (const PaddedSeeds& list : lists) num_seeds += list.capacity;
    result = sample_static_shape_cuda(
        spec, lists, seed,
        reinterpret_cast<const uint64_t*>(int64_values(seed_on_device, "seed", 1)),
        times_of(seed_times, seed_starts, num_seeds), maps, {max_nodes, max_edges, reported},
        valid_padding, allocate_with_gil, arena, launch.device, launch.stream);
  }
  return to_python(result.padded) + py::make_tuple(address_of(result.counts));
}
#endif

}  // namespace

void register_sampling(py::module_& m) {
  py::class_<Leased<Choice>>(m, "Choice")
      .def(py::init(&make_choice), py::kw_only(), py::arg("replace") = false,
           py::arg("last") = false, py::arg("weights") = Leased<TableView>{},
           py::arg("weight_bytes") = 0, py::arg("times") = Leased<TableView>{},
           py::arg("time_bytes") = 0, py::arg("edge_time") = false, py::arg("window") = -1,
           py::arg("per_source") = false, py::arg("layer_dependency") = false,
           py::arg("skip_zero_weights") = false);
  py::class_<NodeMap>(m, "NodeMap")
      .def(py::init([](const TensorRef& words, int least_bits) {
             return NodeMap(reinterpret_cast<uint32_t*>(words.int32_values("words")),
                            words.num_elements(), least_bits);
           }),
           py::kw_only(), py::arg("words"), py::arg("least_bits"));
  // Threads hold it, too.
  py::class_<LeasedSpec, std::shared_ptr<LeasedSpec>> spec(m, "KHopSampler");
  spec.def(py::init(&make_spec), py::kw_only(), py::arg("node_types"), py::arg("relations"),
           py::arg("expand_all"), py::arg("disjoint"), py::arg("induced"), py::arg("edge_ids"),
           py::arg("duplicate_counts"), py::arg("index_bytes"));
  spec.def_static("of_walks", &make_visit_spec, py::kw_only(), py::arg("node_type"),
                  py::arg("metapath"), py::arg("num_walks"), py::arg("walk_length"),
                  py::arg("num_neighbors"), py::arg("num_layers"), py::arg("restart_below"),
                  py::arg("stream"));
  spec.def("sample", &sample_khop_tensors, py::arg("seeds"), py::arg("seed"), py::arg("seed_times"),
           py::arg("seed_starts"), py::arg("maps"), py::arg("mailbox"), py::arg("scratch"),
           py::arg("allocate"), py::arg("allocate_result"), py::arg("launch"));
  spec.def("lists_in_order", &lists_in_order, py::arg("relation"), py::arg("word"),
           py::arg("launch"));
  spec.def("set_in_order", &set_in_order, py::arg("relation"));
  spec.def_property_readonly(
      "mailbox_words", [](const LeasedSpec& leased) { return mailbox_words(leased.unopened()); });
  spec.def_property_readonly(
      "relation_bytes", [](const LeasedSpec& leased) { return relation_bytes(leased.unopened()); });
#ifdef PEERGRAPH_CUDA
  spec.def("place_relations", &place_relations, py::arg("memory"), py::arg("launch"),
           py::keep_alive<1, 2>(), ReleaseGil());
  spec.def("sample_static_shape", &sample_static_shape, py::arg("seeds"), py::arg("seed"),
           py::arg("seed_on_device"), py::arg("seed_times"), py::arg("seed_starts"),
           py::arg("direct"), py::arg("max_nodes"), py::arg("max_edges"), py::arg("reported"),
           py::arg("valid_padding"), py::arg("allocate"), py::arg("launch"));
#endif
}

}  // namespace peergraph
