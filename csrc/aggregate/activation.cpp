#include "aggregate/activation.h"

#include <algorithm>
#include <vector>

#include "common/pack.h"
#include "common/parallel.h"
#include "common/vectors.h"

namespace peergraph {
namespace {

constexpr int64_t kValuesPerThread = 1 << 14;

int64_t grain_of(int64_t columns) {
  return std::max<int64_t>(1, kValuesPerThread / std::max<int64_t>(1, columns));
}

/// The bits of dropped elements of one byte of a row.
PG_INLINE unsigned dropped_bits(const Activation& op, int64_t row, int64_t byte) {
  if (op.threshold == 0) return 0;
  const RandomGroup random(*op.seed, row, byte);
  unsigned dropped = 0;
  for (int i = 0; i < kElementsOfByte; ++i)
    dropped |= static_cast<unsigned>(random.of(i) < op.threshold) << i;
  return dropped;
}

/// As many values as a byte has bits, in vectors, and the bits by lane.
template <typename Value, int kBytes>
struct Group {
  using Pack = WidePack<Value, kElementsOfByte, kBytes>;
  using Bits = typename Pack::template PartOf<IntegerOf<Value>>;

  Pack values;

  /// The bit of each lane of a part.
  static PG_INLINE Bits lane_bits(int part) {
    Bits bits;
    for (int lane = 0; lane < Pack::kPartLanes; ++lane)
      bits[lane] = IntegerOf<Value>{1} << (part * Pack::kPartLanes + lane);
    return bits;
  }

  /// Multiplies the values that pass by `scale`, and makes the others 0. The values of `bits` may
  /// pass; with kRelu, those that are not 0 or less. Returns the bits of those that do.
  template <bool kRelu>
  PG_INLINE unsigned scale_passing(unsigned bits, Value scale) {
    unsigned passing = 0;
    for (int p = 0; p < Pack::kParts; ++p) {
      auto keeps = (lane_bits(p) & static_cast<IntegerOf<Value>>(bits)) != 0;
      if (kRelu) keeps &= (values.part[p] <= 0) == 0;
      const auto scaled = values.part[p] * scale;
      values.part[p] = keeps ? scaled : typename Pack::Part{};
      const Bits passing_lanes = keeps & lane_bits(p);
      for (int lane = 0; lane < Pack::kPartLanes; ++lane)
        passing |= static_cast<unsigned>(passing_lanes[lane]);
    }
    return passing;
  }
};

/// Computes the elements of one byte; returns their bits.
template <bool kRelu, int kBytes, typename T, typename Value>
PG_INLINE uint8_t activate_group(const T* x, const Value* bias, Value scale, unsigned dropped,
                                 T* out) {
  Group<Value, kBytes> group;
  typename Group<Value, kBytes>::Pack offset;
  group.values.load(x);
  offset.load(bias);
  group.values.add(offset);
  const unsigned bits = group.template scale_passing<kRelu>(~dropped & 0xffu, scale);
  group.values.store(out);
  return static_cast<uint8_t>(bits);
}

/// Calls body(x, out, first column, byte) for each byte of a row, with whole groups of elements:
/// the last columns are copied to a group and back.
template <typename T, typename Body>
PG_INLINE void each_group(const T* x, T* out, int64_t columns, const Body& body) {
  const int64_t whole = columns / kElementsOfByte;
  for (int64_t byte = 0; byte < whole; ++byte)
    body(x + byte * kElementsOfByte, out + byte * kElementsOfByte, byte);
  const int64_t first = whole * kElementsOfByte;
  if (first == columns) return;
  T rest[kElementsOfByte] = {}, result[kElementsOfByte];
  std::copy(x + first, x + columns, rest);
  body(rest, result, whole);
  std::copy(result, result + (columns - first), out + first);
}

/// `bias` has whole groups.
template <typename T, bool kRelu, int kBytes>
PG_INLINE void activate_rows(const Activation& op, const AccumulatorOf<T>* bias, int64_t begin,
                             int64_t end) {
  const auto scale = static_cast<AccumulatorOf<T>>(op.scale);
  const int64_t bytes = op.bytes_of_row();
  const auto last_bits = static_cast<uint8_t>(0xffu >> (bytes * kElementsOfByte - op.columns));
  for (int64_t row = begin; row < end; ++row) {
    const auto run = [&](const T* x, T* out, int64_t byte) PG_INLINED {
      const unsigned dropped = dropped_bits(op, row, byte);
      const uint8_t bits =
          activate_group<kRelu, kBytes>(x, bias + byte * kElementsOfByte, scale, dropped, out);
      if (op.bits != nullptr)
        op.bits[row * bytes + byte] = byte + 1 == bytes ? bits & last_bits : bits;
    };
    each_group(static_cast<const T*>(op.x) + row * op.columns,
               static_cast<T*>(op.out) + row * op.columns, op.columns, run);
  }
}

template <typename T, int kBytes>
PG_INLINE void backward_of_part(const ActivationGradient& op, int64_t part) {
  using Value = AccumulatorOf<T>;
  const auto scale = static_cast<Value>(op.scale);
  const int64_t bytes = op.bytes_of_row();
  std::vector<Value> sums(bytes * kElementsOfByte);
  for (int64_t row = op.first_row(part); row < op.first_row(part + 1); ++row) {
    const auto run = [&](const T* grad, T* out, int64_t byte) PG_INLINED {
      Group<Value, kBytes> group;
      typename Group<Value, kBytes>::Pack sum;
      group.values.load(grad);
      group.template scale_passing<false>(op.bits[row * bytes + byte], scale);
      group.values.store(out);
      sum.load(sums.data() + byte * kElementsOfByte);
      sum.add(group.values);
      sum.store(sums.data() + byte * kElementsOfByte);
    };
    each_group(static_cast<const T*>(op.grad) + row * op.columns,
               static_cast<T*>(op.out) + row * op.columns, op.columns, run);
  }
  if (op.partial != nullptr)
    std::copy_n(sums.begin(), op.columns, static_cast<Value*>(op.partial) + part * op.columns);
}

}  // namespace

void activate_cpu(const Activation& op, int num_threads) {
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    using Value = AccumulatorOf<T>;
    std::vector<Value> bias(op.bytes_of_row() * kElementsOfByte);
    if (op.bias != nullptr)
      std::copy_n(static_cast<const Value*>(op.bias), op.columns, bias.begin());
    const auto rows = [&](int64_t begin, int64_t end) {
      with_vectors<32>([&](auto bytes) PG_INLINED {
        op.relu ? activate_rows<T, true, bytes>(op, bias.data(), begin, end)
                : activate_rows<T, false, bytes>(op, bias.data(), begin, end);
      });
    };
    parallel_for(op.num_rows, grain_of(op.columns), num_threads, rows, torch_team());
  });
}

void activate_backward_cpu(const ActivationGradient& op, int num_threads) {
  with_dtype(op.dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [&](int64_t part) {
      with_vectors<32>([&](auto bytes) PG_INLINED { backward_of_part<T, bytes>(op, part); });
    };
    parallel_pieces(op.num_parts, num_threads, run, torch_team());
  });
}

}  // namespace peergraph
