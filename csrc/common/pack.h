// A fixed number of floats or doubles, in vectors of the caller's width. Arithmetic is by lane, and
// results are the same for any width.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "common/element.h"
#include "common/vectors.h"

namespace peergraph {

template <typename V, int kBytes>
struct VectorOf {
  typedef V type __attribute__((vector_size(kBytes)));
};

/// Integers as wide as Value.
template <typename Value>
using IntegerOf = std::conditional_t<sizeof(Value) == 4, int32_t, int64_t>;

/// Lanes of 64 bytes.
template <typename Value>
constexpr int kLanesOf = 64 / static_cast<int>(sizeof(Value));

/// `kLanes` values of V, in vectors of at most `kBytes` bytes.
template <typename V, int kLanes, int kBytes>
struct WidePack {
  static constexpr int kSize = kLanes * static_cast<int>(sizeof(V));
  static constexpr int kPartBytes = kSize < kBytes ? kSize : kBytes;
  static constexpr int kParts = kSize / kPartBytes;
  static constexpr int kPartLanes = kLanes / kParts;
  template <typename Lane>
  using PartOf =
      typename std::conditional_t<kPartLanes == 1, std::common_type<Lane>,
                                  VectorOf<Lane, kPartLanes* static_cast<int>(sizeof(Lane))>>::type;
  using Part = PartOf<V>;

  Part part[kParts];

  PG_INLINE void fill(V value) {
    for (int i = 0; i < kParts; ++i) {
      V lanes[kPartLanes];
      for (int lane = 0; lane < kPartLanes; ++lane) lanes[lane] = value;
      std::memcpy(&part[i], lanes, kPartBytes);
    }
  }

  PG_INLINE void load(const V* from) {
    for (int i = 0; i < kParts; ++i) std::memcpy(&part[i], from + i * kPartLanes, kPartBytes);
  }
  PG_INLINE void store(V* to) const {
    for (int i = 0; i < kParts; ++i) std::memcpy(to + i * kPartLanes, &part[i], kPartBytes);
  }

  PG_INLINE void load(const Bfloat16* from) {
    for (int i = 0; i < kParts; ++i) {
      const auto bits = raw(from, i) << 16;
      std::memcpy(&part[i], &bits, kPartBytes);
    }
  }
  /// As narrow() of one value.
  PG_INLINE void store(Bfloat16* to) const {
    for (int i = 0; i < kParts; ++i) {
      const auto value = bits(i);
      const auto rounded = (value + 0x7fffu + ((value >> 16) & 1u)) >> 16;
      set_raw(to, i, (value & 0x7fffffffu) > 0x7f800000u ? same(value, 0x7fc0u) : rounded);
    }
  }

  /// As widen() of one value.
  PG_INLINE void load(const Half* from) {
    for (int i = 0; i < kParts; ++i) {
      const auto half = raw(from, i);
      const auto sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
      const auto shifted = magnitude << 13;
      Part scaled;
      std::memcpy(&scaled, &shifted, kPartBytes);
      scaled *= 0x1p112f;
      PartOf<uint32_t> finite;
      std::memcpy(&finite, &scaled, kPartBytes);
      const auto special = 0x7f800000u | (magnitude & 0x3ffu) << 13;
      const auto value = sign | (magnitude >= 0x7c00u ? special : finite);
      std::memcpy(&part[i], &value, kPartBytes);
    }
  }
  /// As narrow() of one value.
  PG_INLINE void store(Half* to) const {
    for (int i = 0; i < kParts; ++i) {
      const auto value = bits(i);
      const auto magnitude = value & 0x7fffffffu;
      Part small;
      std::memcpy(&small, &magnitude, kPartBytes);
      small += 0.5f;
      PartOf<uint32_t> tiny;
      std::memcpy(&tiny, &small, kPartBytes);
      auto half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
      half = magnitude < 0x38800000u ? tiny - 0x3f000000u : half;
      half = magnitude >= 0x477ff000u ? same(half, 0x7c00u) : half;
      half = magnitude > 0x7f800000u ? same(half, 0x7e00u) : half;
      set_raw(to, i, (value >> 16 & 0x8000u) | half);
    }
  }

  PG_INLINE void add(const WidePack& other) {
    for (int i = 0; i < kParts; ++i) part[i] += other.part[i];
  }
  PG_INLINE void multiply(const WidePack& other) {
    for (int i = 0; i < kParts; ++i) part[i] *= other.part[i];
  }
  PG_INLINE void divide(const WidePack& other) {
    for (int i = 0; i < kParts; ++i) part[i] /= other.part[i];
  }

  PG_INLINE void scale(V factor) {
    for (int i = 0; i < kParts; ++i) part[i] *= factor;
  }

  /// Takes the lanes of `other` that are larger, or that are NaN where this lane is not (kNan:
  /// there may be NaN), and writes `tag` to these lanes of `tags`.
  template <bool kNan, typename Tag>
  PG_INLINE void take_larger(const WidePack& other, Tag tag, WidePack<Tag, kLanes, kBytes>* tags) {
    WidePack<Tag, kLanes, kBytes> given;
    given.fill(tag);
    for (int i = 0; i < kParts; ++i) {
      auto take = other.part[i] > part[i];
      if constexpr (kNan) take = (part[i] == part[i]) & ((other.part[i] <= part[i]) == 0);
      part[i] = take ? other.part[i] : part[i];
      tags->part[i] = take ? given.part[i] : tags->part[i];
    }
  }

  /// The sum of all lanes: halves are added until one is left.
  PG_INLINE V sum() const {
    if constexpr (kLanes == 1) {
      return part[0];
    } else {
      WidePack<V, kLanes / 2, kBytes> half;
      if constexpr (kParts > 1) {
        for (int i = 0; i < kParts / 2; ++i) half.part[i] = part[i] + part[i + kParts / 2];
      } else {
        half.part[0] = half_of<0>(std::make_integer_sequence<int, kLanes / 2>{}) +
                       half_of<kLanes / 2>(std::make_integer_sequence<int, kLanes / 2>{});
      }
      return half.sum();
    }
  }

 private:
  template <int kFirst, int... kLane>
  PG_INLINE auto half_of(std::integer_sequence<int, kLane...>) const {
    return typename WidePack<V, kLanes / 2, kBytes>::Part{part[0][kFirst + kLane]...};
  }

  PG_INLINE PartOf<uint32_t> bits(int i) const {
    PartOf<uint32_t> result;
    std::memcpy(&result, &part[i], kPartBytes);
    return result;
  }

  /// `value` in all lanes, of the type of `like`.
  template <typename Like>
  static PG_INLINE Like same(const Like& like, uint32_t value) {
    return like - like + value;
  }

  /// 16-bit elements, each widened to 32 bits.
  template <typename T>
  static PG_INLINE PartOf<uint32_t> raw(const T* from, int i) {
    PartOf<uint16_t> narrow;
    std::memcpy(&narrow, from + i * kPartLanes, sizeof(narrow));
    if constexpr (kPartLanes == 1)
      return narrow;
    else
      return __builtin_convertvector(narrow, PartOf<uint32_t>);
  }
  template <typename T>
  static PG_INLINE void set_raw(T* to, int i, const PartOf<uint32_t>& wide) {
    PartOf<uint16_t> narrow;
    if constexpr (kPartLanes == 1)
      narrow = static_cast<uint16_t>(wide);
    else
      narrow = __builtin_convertvector(wide, PartOf<uint16_t>);
    std::memcpy(to + i * kPartLanes, &narrow, sizeof(narrow));
  }
};

}  // namespace peergraph
