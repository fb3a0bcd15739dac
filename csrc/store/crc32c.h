// Checksums of the files of saved stores.
#pragma once

#include <cstdint>

namespace peergraph {

/// CRC-32C (the polynomial of Castagnoli, as in iSCSI and ext4) of `num_bytes` at `data`.
/// `previous` is the checksum of the bytes before these, 0 if there are none.
/// Runs on the caller's thread.
uint32_t crc32c(const void* data, int64_t num_bytes, uint32_t previous);

}  // namespace peergraph
