// Random numbers of rows on the CPU: several blocks of the generator are computed in one vector.
#include "fullgraph/row_random.h"

#include <algorithm>

#include "common/parallel.h"
#include "common/vectors.h"

namespace peergraph {
namespace {

// With fewer lanes, compilers unroll the loops over lanes completely and do not vectorise them.
constexpr int kLanes = 32;
constexpr int64_t kBlocksPerThread = 4096;

/// Consecutive blocks of the generator. Their elements are consecutive too.
struct Blocks {
  int64_t count;
  int64_t element;      // the first one
  int columns[kLanes];  // elements of each block
  uint32_t words[kLanes][4];
};

/// Iterates the blocks of all rows, from block `first` on, row by row.
class BlockCursor {
 public:
  BlockCursor(const RandomRows& rows, int columns_per_block, int64_t first)
      : rows_(rows),
        per_row_((rows.columns + columns_per_block - 1) / columns_per_block),
        columns_per_block_(columns_per_block),
        row_(first / per_row_),
        block_(first % per_row_) {}

  /// Makes the next `count` blocks, at most kLanes.
  PG_INLINE void make(int64_t count, Blocks* blocks) {
    blocks->count = count;
    blocks->element = row_ * rows_.columns + block_ * columns_per_block_;
    uint32_t c0[kLanes] = {}, c1[kLanes] = {}, c2[kLanes] = {}, c3[kLanes] = {};
    for (int64_t l = 0; l < count; ++l) {
      const auto id = static_cast<uint64_t>(rows_.row_ids[row_]), block = uint64_t(block_);
      c0[l] = static_cast<uint32_t>(id);
      c1[l] = static_cast<uint32_t>(id >> 32);
      c2[l] = static_cast<uint32_t>(block);
      c3[l] = static_cast<uint32_t>(block >> 32);
      blocks->columns[l] = static_cast<int>(
          std::min<int64_t>(columns_per_block_, rows_.columns - block_ * columns_per_block_));
      if (++block_ == per_row_) {
        block_ = 0;
        ++row_;
      }
    }
    PhiloxKey key(rows_.key());
    for (int round = 0; round < kPhiloxRounds; ++round, key.next())
      for (int l = 0; l < kLanes; ++l) philox_round(c0[l], c1[l], c2[l], c3[l], key);
    for (int l = 0; l < kLanes; ++l) {
      blocks->words[l][0] = c0[l];
      blocks->words[l][1] = c1[l];
      blocks->words[l][2] = c2[l];
      blocks->words[l][3] = c3[l];
    }
  }

 private:
  const RandomRows& rows_;
  int64_t per_row_;
  int columns_per_block_;
  int64_t row_, block_;
};

/// Calls body(Blocks) on pieces of all rows, in several threads, with wide vectors.
template <typename Body>
void each_blocks(const RandomRows& rows, int columns_per_block, int num_threads, const Body& body) {
  if (rows.num_elements() == 0) return;
  const int64_t per_row = (rows.columns + columns_per_block - 1) / columns_per_block;
  const auto walk = [&](int64_t begin, int64_t end) {
    with_vectors<64>([&](auto) PG_INLINED {
      BlockCursor cursor(rows, columns_per_block, begin);
      Blocks blocks;
      for (int64_t block = begin; block < end; block += kLanes) {
        cursor.make(std::min<int64_t>(kLanes, end - block), &blocks);
        body(blocks);
      }
    });
  };
  parallel_for(rows.num_rows * per_row, kBlocksPerThread, num_threads, walk, torch_team());
}

template <typename Number, typename T>
PG_INLINE void write_numbers(const Blocks& blocks, T* out) {
  for (int64_t b = 0; b < blocks.count; ++b) {
    const uint32_t* words = blocks.words[b];
    for (int c = 0; c < blocks.columns[b]; ++c)
      Number::write(join_words(words[2 * c], words[2 * c + 1]), out++);
  }
}

template <typename T>
PG_INLINE void write_dropout(const Blocks& blocks, const DropoutRows& op) {
  using Value = AccumulatorOf<T>;
  const auto scale = static_cast<Value>(op.scale);
  uint32_t words[kColumnsOf32 * kLanes];
  int64_t count = 0;
  for (int64_t b = 0; b < blocks.count; count += blocks.columns[b++])
    for (int c = 0; c < blocks.columns[b]; ++c) words[count + c] = blocks.words[b][c];
  T* out = static_cast<T*>(op.out) + blocks.element;
  if (op.x == nullptr) {
    for (int64_t i = 0; i < count; ++i)
      narrow(words[i] >= op.threshold ? scale : Value{0}, out + i);
    return;
  }
  const T* x = static_cast<const T*>(op.x) + blocks.element;
  for (int64_t i = 0; i < count; ++i)
    narrow(words[i] >= op.threshold ? widen(x[i]) * scale : Value{0}, out + i);
}

}  // namespace

void fill_random_cpu(const FillRandom& op, int num_threads) {
  with_dtype(op.dtype, [&](auto element) {
    with_distribution(op.distribution, [&](auto number) {
      auto* out = static_cast<decltype(element)*>(op.out);
      const auto write = [&](const Blocks& blocks) PG_INLINED {
        write_numbers<decltype(number)>(blocks, out + blocks.element);
      };
      each_blocks(op.rows, kColumnsOf64, num_threads, write);
    });
  });
}

void dropout_rows_cpu(const DropoutRows& op, int num_threads) {
  with_dtype(op.dtype, [&](auto element) {
    const auto write = [&](const Blocks& blocks)
                           PG_INLINED { write_dropout<decltype(element)>(blocks, op); };
    each_blocks(op.rows, kColumnsOf32, num_threads, write);
  });
}

}  // namespace peergraph
