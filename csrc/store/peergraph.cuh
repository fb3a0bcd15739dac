// Device functions over a store (XGNN 3), for Peergraph's kernels and for users' kernels. Compiles
// with nvcc, NVRTC (CuPy's RawKernel) or a host compiler, without headers of CUDA or C++.
//
// A kernel takes GraphView and TableView by value, best as `const __grid_constant__` parameters, so
// that the arrays in them are not copied; peergraph.store.graph_argument and
// peergraph.memory.table_argument give the values. Nodes and edges are named by the users' ids.
// Ids are not checked. They must be in range, 0 .. graph.num_nodes() - 1, 0 .. table.map.rows - 1.
#pragma once

#include "common/fixed_width.h"
#include "common/host_device.h"
#include "common/ids.h"
#include "memory/table_view.h"
#include "store/csc_view.h"

namespace peergraph {

/// One relation.
struct GraphView {
  CscView lists;
  IdMapView rows;   // destination -> its row in `lists`
  IdMapView users;  // source as `lists` has it -> the user's id

  /// The number of destinations.
  PG_HD int64_t num_nodes() const { return lists.map.rows; }
};

/// The in-neighbours of a node, in the order of the user's CSC.
struct NeighborList {
  Neighbors list;
  int32_t index_bytes;
  IdMapView users;

  PG_HD int64_t size() const { return list.degree; }

  /// The user's id of the i-th in-neighbour.
  PG_HD int64_t operator[](int64_t i) const { return users(row(i)); }

  /// The row of the i-th in-neighbour in every table of its node type, for features_of_row. It
  /// saves two look-ups.
  PG_HD int64_t row(int64_t i) const { return load_id(list.indices, index_bytes, i); }
};

/// In-degree.
PG_HD int64_t num_neighbors(const GraphView& graph, int64_t node) {
  return graph.lists.degree(graph.rows(node));
}

PG_HD NeighborList neighbors(const GraphView& graph, int64_t node) {
  return {graph.lists.neighbors(graph.rows(node)), graph.lists.index_bytes, graph.users};
}

/// The i-th in-neighbour of a node.
PG_HD int64_t neighbors(const GraphView& graph, int64_t node, int64_t i) {
  return neighbors(graph, node)[i];
}

/// The id of the edge from the i-th of the in-neighbours: its row in edge tables.
PG_HD int64_t edge_id(const GraphView& graph, const NeighborList& from, int64_t i) {
  return graph.lists.edge_id(from.list.edge_begin + i);
}

/// The features of a node or an edge, from any tier: one row of the table, as T.
template <typename T>
PG_HD const T* features(const TableView& table, int64_t id) {
  return reinterpret_cast<const T*>(table.find(id));
}

/// As features, by the row that NeighborList::row returns.
template <typename T>
PG_HD const T* features_of_row(const TableView& table, int64_t row) {
  return reinterpret_cast<const T*>(table.row(row));
}

}  // namespace peergraph
