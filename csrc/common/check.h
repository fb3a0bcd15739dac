// Errors that reach Python: std::invalid_argument is ValueError, std::out_of_range IndexError,
// std::runtime_error RuntimeError.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace peergraph {

/// Raises RuntimeError for a failed system call, with the call's name and errno's text.
[[noreturn]] inline void throw_errno(const std::string& call) {
  throw std::runtime_error(call + ": " + std::strerror(errno));
}

/// a * b; raises ValueError for negative numbers and for a product of more than 63 bits, as no
/// memory has that size.
inline int64_t checked_product(int64_t a, int64_t b) {
  int64_t product = 0;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product))
    throw std::invalid_argument("a size is out of range: " + std::to_string(a) + " times " +
                                std::to_string(b));
  return product;
}

}  // namespace peergraph

#define PG_CHECK_ARG(condition, message)                                 \
  do {                                                                   \
    if (!(condition)) throw std::invalid_argument(std::string(message)); \
  } while (0)
