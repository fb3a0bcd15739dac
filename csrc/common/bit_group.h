// Bitmasks of elements: a byte has a bit for each of 8 adjacent elements.
#pragma once

#include <cstdint>

namespace peergraph {

/// The number of elements in a byte of a bitmask; the first element has the lowest bit.
constexpr int kElementsOfByte = 8;

/// The bytes for `elements` elements.
constexpr int64_t mask_bytes(int64_t elements) {
  return (elements + kElementsOfByte - 1) / kElementsOfByte;
}

}  // namespace peergraph
