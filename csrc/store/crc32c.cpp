#include "store/crc32c.h"

#include <array>
#include <cstring>

#include "common/check.h"
#include "common/vectors.h"

namespace peergraph {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed
constexpr int kWord = 8;                      // bytes that are taken at once

using Tables = std::array<std::array<uint32_t, 256>, kWord>;

/// [k][byte]: the term that a byte adds to the checksum if k bytes follow it in the word.
Tables make_tables() {
  Tables tables;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (int k = 1; k < kWord; ++k)
    for (int byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = (shorter >> 8) ^ tables[0][shorter & 0xff];
    }
  return tables;
}

/// Computes the checksum by tables, on any CPU ("slicing by 8").
uint32_t update_by_tables(uint32_t crc, const unsigned char* data, int64_t num_bytes) {
  static const Tables tables = make_tables();
  for (; num_bytes >= kWord; data += kWord, num_bytes -= kWord) {
    uint32_t next = 0;
    for (int i = 0; i < kWord; ++i) {
      const uint32_t mixed = i < 4 ? crc >> (8 * i) : 0;
      next ^= tables[kWord - 1 - i][(mixed ^ data[i]) & 0xff];
    }
    crc = next;
  }
  for (; num_bytes > 0; ++data, --num_bytes) crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xff];
  return crc;
}

#ifdef PG_WIDER_VECTORS
// A CRC instruction waits three cycles for the previous one, so three independent streams keep the
// CPU busy.
constexpr int64_t kLeastForStreams = 4096;

/// Multiplies polynomials modulo the checksum's. The highest bit is the coefficient of x^0.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if (a & bit) product ^= b;
    b = (b >> 1) ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

/// Returns the factor by which a checksum changes if `num_bytes` zeros follow: x^(8 num_bytes).
uint32_t shift_of(int64_t num_bytes) {
  uint32_t power = 1u << 31, square = 1u << 30;
  for (int64_t bits = 8 * num_bytes; bits != 0; bits >>= 1) {
    if (bits & 1) power = multiply(power, square);
    square = multiply(square, square);
  }
  return power;
}

/// Computes the checksum by the CRC instruction of x86-64 CPUs with SSE 4.2.
__attribute__((target("sse4.2"))) uint32_t update_by_instruction(uint32_t crc,
                                                                 const unsigned char* data,
                                                                 int64_t num_bytes) {
  const auto word_at = [](const unsigned char* address) {
    uint64_t word;
    std::memcpy(&word, address, kWord);
    return word;
  };
  if (num_bytes >= kLeastForStreams) {
    const int64_t length = num_bytes / (3 * kWord) * kWord;
    uint64_t streams[3] = {crc, 0, 0};
    for (int64_t at = 0; at < length; at += kWord)
      for (int s = 0; s < 3; ++s)
        streams[s] = __builtin_ia32_crc32di(streams[s], word_at(data + s * length + at));
    const uint32_t shift = shift_of(length);
    crc = static_cast<uint32_t>(streams[0]);
    for (int s = 1; s < 3; ++s) crc = multiply(shift, crc) ^ static_cast<uint32_t>(streams[s]);
    data += 3 * length;
    num_bytes -= 3 * length;
  }
  uint64_t wide = crc;
  for (; num_bytes >= kWord; data += kWord, num_bytes -= kWord)
    wide = __builtin_ia32_crc32di(wide, word_at(data));
  crc = static_cast<uint32_t>(wide);
  for (; num_bytes > 0; ++data, --num_bytes) crc = __builtin_ia32_crc32qi(crc, *data);
  return crc;
}

bool has_instruction() {
  static const bool has = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") != 0;
  }();
  // Tests that ask for the narrowest vectors get the code for any CPU.
  return has && vector_bytes_limit().load(std::memory_order_relaxed) > kLeastVectorBytes;
}
#endif

}  // namespace

uint32_t crc32c(const void* data, int64_t num_bytes, uint32_t previous) {
  PG_CHECK_ARG(num_bytes >= 0, "num_bytes must not be negative");
  const auto* bytes = static_cast<const unsigned char*>(data);
#ifdef PG_WIDER_VECTORS
  if (has_instruction()) return ~update_by_instruction(~previous, bytes, num_bytes);
#endif
  return ~update_by_tables(~previous, bytes, num_bytes);
}

}  // namespace peergraph
