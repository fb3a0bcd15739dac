// Counts how often ids occur.
#pragma once

#include <cstdint>
#include <optional>

#include "common/tensor_ref.h"

namespace peergraph {

struct CountedIds {
  bool in_range = true;  // all ids are from 0 to limit - 1
  bool rises = true;     // no id is smaller than the one before it
};

/// Adds the number of times that each id occurs to `counts`, [limit] int64; without it ids are only
/// checked. Ids out of range are not counted.
///
/// ids        [n] int32 or int64
/// is_shared  whether other processes add to the same memory meanwhile
CountedIds count_ids(const TensorRef& ids, int64_t limit, const std::optional<TensorRef>& counts,
                     bool is_shared, int num_threads);

}  // namespace peergraph
