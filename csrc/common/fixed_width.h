// The integer types of <cstdint> as peergraph::int64_t and so on, for run-time compilation too,
// which has no standard headers.
#pragma once

#ifdef __CUDACC_RTC__
namespace peergraph {
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
}  // namespace peergraph
#else
#include <cstdint>
namespace peergraph {
using ::int32_t;
using ::int64_t;
using ::uint32_t;
}  // namespace peergraph
#endif
