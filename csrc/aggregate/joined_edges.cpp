#include "aggregate/joined_edges.h"

#include <algorithm>

#include "common/read_once.h"

namespace peergraph {
namespace {

/// The key of each edge's row and column, which are read once: another thread may write the ids.
struct EdgeKeys {
  std::vector<int32_t> rows, columns;
};

/// Returns the first edge with an id out of range, or -1.
int64_t read_keys(const EdgeJoin& op, EdgeKeys& keys) {
  for (const JoinedRelation& relation : op.relations) {
    for (int64_t e = 0; e < relation.num_edges; ++e) {
      int64_t source = e, destination = e;
      if (relation.sources != nullptr) {
        source = load_id_once(relation.sources, relation.id_bytes, e);
        destination = load_id_once(relation.destinations, relation.id_bytes, e);
      }
      if (!is_below(source, relation.num_sources) ||
          !is_below(destination, relation.num_destinations))
        return relation.first_edge + e;
      const int64_t row = relation.row_base + destination * relation.row_stride;
      keys.rows.push_back(static_cast<int32_t>(row));
      keys.columns.push_back(static_cast<int32_t>(relation.column_base + source));
    }
  }
  return -1;
}

/// Numbers the keys, and writes where the edges of each begin.
class Numbers {
 public:
  Numbers(const KeySegments& segments, KeyNumbering numbering, const std::vector<int32_t>& keys)
      : segments_(segments), numbering_(numbering), numbers_(segments.num_keys, 0) {
    for (const int32_t key : keys) ++numbers_[key];
  }

  JoinedKeys write(int32_t* keys, int32_t* segment_of, int32_t* indptr) {
    if (numbering_ == KeyNumbering::kAll) return write_all(indptr);
    const bool is_fixed = numbering_ == KeyNumbering::kFixed;
    JoinedKeys result;
    int32_t number = 0, edges = 0;
    const size_t count = segments_.starts.size();
    for (size_t segment = 0; segment < count; ++segment) {
      const int64_t first = segments_.starts[segment];
      const int64_t end = segment + 1 < count ? segments_.starts[segment + 1] : segments_.num_keys;
      if (is_fixed) number = static_cast<int32_t>(segments_.fixed_cuts[segment]);
      result.cuts.push_back(number);
      result.lasts.push_back(is_fixed ? end - first - 1 : -1);
      const auto write = [&](int64_t key) {
        keys[number] = static_cast<int32_t>(key - first);
        if (segment_of != nullptr) segment_of[number] = static_cast<int32_t>(segment);
        if (indptr != nullptr) indptr[number] = edges;
      };
      for (int64_t key = first; key < end; ++key) {
        const int32_t degree = numbers_[key];
        if (degree == 0) continue;
        write(key);
        edges += degree;
        if (!is_fixed) result.lasts.back() = key - first;
        numbers_[key] = number++;
      }
      if (!is_fixed) continue;
      for (; number < segments_.fixed_cuts[segment + 1]; ++number)
        write(segment_of != nullptr ? end - 1 : first + number - segments_.fixed_cuts[segment]);
    }
    result.cuts.push_back(number);
    if (indptr != nullptr) indptr[number] = edges;
    return result;
  }

  int32_t operator[](int32_t key) const { return numbers_[key]; }

 private:
  JoinedKeys write_all(int32_t* indptr) {
    int32_t edges = 0;
    for (int64_t key = 0; key < segments_.num_keys; ++key) {
      if (indptr != nullptr) indptr[key] = edges;
      edges += numbers_[key];
      numbers_[key] = static_cast<int32_t>(key);
    }
    if (indptr != nullptr) indptr[segments_.num_keys] = edges;
    return all_keys(segments_);
  }

  const KeySegments& segments_;
  const KeyNumbering numbering_;
  std::vector<int32_t> numbers_;  // of each key: its edges, then its number
};

}  // namespace

JoinedKeys all_keys(const KeySegments& segments) {
  JoinedKeys result;
  result.cuts = segments.starts;
  result.cuts.push_back(segments.num_keys);
  for (size_t i = 0; i < segments.starts.size(); ++i)
    result.lasts.push_back(result.cuts[i + 1] - result.cuts[i] - 1);
  return result;
}

JoinedCounts join_edges_cpu(const EdgeJoin& op) {
  JoinedCounts result;
  EdgeKeys keys;
  const int64_t num_edges = op.num_edges();
  keys.rows.reserve(num_edges);
  keys.columns.reserve(num_edges);
  result.bad_edge = read_keys(op, keys);
  if (result.bad_edge >= 0) return result;
  Numbers rows(op.rows, op.numbering, keys.rows);
  Numbers columns(op.columns, op.numbering, keys.columns);
  result.rows = rows.write(op.row_keys, op.row_segments, op.indptr);
  result.columns = columns.write(op.column_keys, nullptr, op.by_column);
  std::vector<int32_t> place(op.indptr, op.indptr + result.rows.cuts.back());
  for (int64_t e = 0; e < num_edges; ++e) {
    const int32_t at = place[rows[keys.rows[e]]]++;
    op.indices[at] = columns[keys.columns[e]];
    if (op.edge_ids != nullptr) op.edge_ids[at] = static_cast<int32_t>(e);
  }
  if (op.rows_of == nullptr) return result;
  place.assign(op.by_column, op.by_column + result.columns.cuts.back());
  for (int64_t row = 0; row < result.rows.cuts.back(); ++row)
    for (int32_t p = op.indptr[row]; p < op.indptr[row + 1]; ++p) {
      const int32_t at = place[op.indices[p]]++;
      op.rows_of[at] = static_cast<int32_t>(row);
      op.positions[at] = p;
    }
  return result;
}

}  // namespace peergraph
