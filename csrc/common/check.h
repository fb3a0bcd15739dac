// Errors that reach Python: std::invalid_argument is ValueError, std::out_of_range IndexError,
// std::runtime_error RuntimeError.
#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace peergraph {

/// Raises RuntimeError for a failed system call, with the call's name and errno's text.
[[noreturn]] inline void throw_errno(const std::string& call) {
  throw std::runtime_error(call + ": " + std::strerror(errno));
}

}  // namespace peergraph

#define PG_CHECK_ARG(condition, message)                                 \
  do {                                                                   \
    if (!(condition)) throw std::invalid_argument(std::string(message)); \
  } while (0)
