#include "sampling/draws/distinct_nodes.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/ids.h"
#include "common/read_once.h"

namespace peergraph {

int64_t distinct_nodes_cpu(const int64_t* nodes, int64_t count, int64_t num_nodes,
                           int64_t* distinct) {
  for (int64_t i = 0; i < count; ++i) {
    distinct[i] = read_once(nodes + i);
    if (!is_below(distinct[i], num_nodes))
      throw std::out_of_range("nodes[" + std::to_string(i) + "] = " + std::to_string(distinct[i]) +
                              " is out of range for " + std::to_string(num_nodes) + " nodes");
  }
  std::sort(distinct, distinct + count);
  return std::unique(distinct, distinct + count) - distinct;
}

}  // namespace peergraph
