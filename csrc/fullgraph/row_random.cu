// Random numbers of rows on a GPU: a thread makes the numbers of the columns that share a block of
// the generator, and reads and writes them as one vector where addresses and width allow it.
#include <limits>

#include "common/cuda_check.cuh"
#include "fullgraph/row_random.h"

namespace peergraph {
namespace {

/// The columns of one block of the generator, moved in pieces of up to 16 bytes.
template <typename T, int kColumns>
struct alignas(sizeof(T) * kColumns < 16 ? sizeof(T) * kColumns : 16) Vector {
  T values[kColumns];
};

/// A block of the generator: its row and its first column.
struct BlockPlace {
  int64_t row;
  int64_t block;
};

/// Divisions of 32 bits take a third of the time of divisions of 64 bits.
template <typename Index>
__device__ __forceinline__ BlockPlace place_of(int64_t i, int64_t per_row) {
  const auto index = static_cast<Index>(i), width = static_cast<Index>(per_row);
  const Index row = index / width;
  return {static_cast<int64_t>(row), static_cast<int64_t>(index - row * width)};
}

/// The elements of a block in global memory: a whole vector, or the columns that exist.
template <typename T, int kColumns, bool kVectors>
struct Elements {
  int64_t first;
  int count;

  __device__ __forceinline__ Elements(const RandomRows& rows, BlockPlace place)
      : first(place.row * rows.columns + place.block * kColumns),
        count(static_cast<int>(min(int64_t{kColumns}, rows.columns - place.block * kColumns))) {}

  __device__ __forceinline__ Vector<T, kColumns> load(const T* from) const {
    if constexpr (kVectors) {
      return *reinterpret_cast<const Vector<T, kColumns>*>(from + first);
    } else {
      Vector<T, kColumns> found;
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        if (c < count) found.values[c] = from[first + c];
      return found;
    }
  }

  __device__ __forceinline__ void store(const Vector<T, kColumns>& vector, T* to) const {
    if constexpr (kVectors) {
      *reinterpret_cast<Vector<T, kColumns>*>(to + first) = vector;
    } else {
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        if (c < count) to[first + c] = vector.values[c];
    }
  }
};

template <typename Number, typename T, typename Index, bool kVectors>
__global__ void __launch_bounds__(kBlockThreads)
    fill_random_rows(const __grid_constant__ RandomRows rows, int64_t per_row, T* out) {
  const int64_t blocks = rows.num_rows * per_row;
  const uint64_t key = rows.key();
  for (int64_t i = global_thread(); i < blocks; i += grid_threads()) {
    const BlockPlace place = place_of<Index>(i, per_row);
    const Philox4x32 block = philox(key, static_cast<uint64_t>(rows.row_ids[place.row]),
                                    static_cast<uint64_t>(place.block));
    Vector<T, kColumnsOf64> made;
    Number::write(join_words(block.v[0], block.v[1]), &made.values[0]);
    Number::write(join_words(block.v[2], block.v[3]), &made.values[1]);
    Elements<T, kColumnsOf64, kVectors>(rows, place).store(made, out);
  }
}

template <typename T, typename Index, bool kVectors>
__global__ void __launch_bounds__(kBlockThreads)
    dropout_rows(const __grid_constant__ DropoutRows op, int64_t per_row) {
  using Value = AccumulatorOf<T>;
  const auto* x = static_cast<const T*>(op.x);
  const auto scale = static_cast<Value>(op.scale);
  const int64_t blocks = op.rows.num_rows * per_row;
  const uint64_t key = op.rows.key();
  for (int64_t i = global_thread(); i < blocks; i += grid_threads()) {
    const BlockPlace place = place_of<Index>(i, per_row);
    const Elements<T, kColumnsOf32, kVectors> elements(op.rows, place);
    Vector<T, kColumnsOf32> values;
    if (x != nullptr) values = elements.load(x);
    const Philox4x32 block = philox(key, static_cast<uint64_t>(op.rows.row_ids[place.row]),
                                    static_cast<uint64_t>(place.block));
#pragma unroll
    for (int c = 0; c < kColumnsOf32; ++c) {
      Value value = scale;
      if (x != nullptr) value = multiply_exact(widen(values.values[c]), scale);
      narrow(block.v[c] >= op.threshold ? value : Value{0}, &values.values[c]);
    }
    elements.store(values, static_cast<T*>(op.out));
  }
}

/// Calls body(Index{}, whether vectors can be moved, blocks of a row, blocks of the grid).
template <typename T, int kColumns, typename Body>
void with_shape(const RandomRows& rows, const void* in, const void* out, const Body& body) {
  if (rows.num_elements() == 0) return;
  const int64_t per_row = (rows.columns + kColumns - 1) / kColumns;
  const int64_t blocks = rows.num_rows * per_row;
  const auto addresses = reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out);
  const bool vectors =
      rows.columns % kColumns == 0 && addresses % alignof(Vector<T, kColumns>) == 0;
  const auto with_index = [&](auto index) {
    vectors ? body(index, std::true_type{}, per_row, grid_for(blocks))
            : body(index, std::false_type{}, per_row, grid_for(blocks));
  };
  blocks <= std::numeric_limits<uint32_t>::max() ? with_index(uint32_t{}) : with_index(uint64_t{});
}

}  // namespace

void fill_random_cuda(const FillRandom& op, const Launch& launch) {
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    with_distribution(op.distribution, [&](auto number) {
      const auto run = [&](auto index, auto vectors, int64_t per_row, unsigned grid) {
        fill_random_rows<decltype(number), T, decltype(index), decltype(vectors)::value>
            <<<grid, kBlockThreads, 0, stream>>>(op.rows, per_row, static_cast<T*>(op.out));
        PG_LAUNCH_CHECK("fill_random_rows");
      };
      with_shape<T, kColumnsOf64>(op.rows, nullptr, op.out, run);
    });
  });
}

void dropout_rows_cuda(const DropoutRows& op, const Launch& launch) {
  DeviceGuard guard(launch.device);
  const auto stream = reinterpret_cast<cudaStream_t>(launch.stream);
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [&](auto index, auto vectors, int64_t per_row, unsigned grid) {
      dropout_rows<T, decltype(index), decltype(vectors)::value>
          <<<grid, kBlockThreads, 0, stream>>>(op, per_row);
      PG_LAUNCH_CHECK("dropout_rows");
    };
    with_shape<T, kColumnsOf32>(op.rows, op.x, op.out, run);
  });
}

}  // namespace peergraph
