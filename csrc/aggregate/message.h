// The message of an edge: a function of its source's feature u and its own feature e.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/check.h"
#include "common/host_device.h"
#include "memory/row_codec.h"

namespace peergraph {

enum class Message : int32_t { kCopyU = 0, kCopyE = 1, kAdd = 2, kSub = 3, kMul = 4, kDiv = 5 };

PG_HD constexpr bool uses_u(Message message) { return message != Message::kCopyE; }
PG_HD constexpr bool uses_e(Message message) { return message != Message::kCopyU; }

template <typename Value>
PG_HD Value apply(Message message, Value u, Value e) {
  switch (message) {
    case Message::kCopyU:
      return u;
    case Message::kCopyE:
      return e;
    case Message::kAdd:
      return u + e;
    case Message::kSub:
      return u - e;
    case Message::kMul:
      return u * e;
    default:
      return u / e;
  }
}

/// The gradient of u, given the message's gradient.
template <typename Value>
PG_HD Value grad_of_u(Message message, Value grad, Value e) {
  if (message == Message::kMul) return grad * e;
  if (message == Message::kDiv) return grad / e;
  return grad;
}

/// The gradient of e, given the message's gradient.
template <typename Value>
PG_HD Value grad_of_e(Message message, Value grad, Value u, Value e) {
  if (message == Message::kSub) return -grad;
  if (message == Message::kMul) return grad * u;
  if (message == Message::kDiv) return -(grad * u / e) / e;
  return grad;
}

/// Calls body(std::integral_constant<Message, message>), so that inner loops do not switch.
template <typename Body>
void with_message(Message message, Body&& body) {
  switch (message) {
    case Message::kCopyU:
      return body(std::integral_constant<Message, Message::kCopyU>{});
    case Message::kCopyE:
      return body(std::integral_constant<Message, Message::kCopyE>{});
    case Message::kAdd:
      return body(std::integral_constant<Message, Message::kAdd>{});
    case Message::kSub:
      return body(std::integral_constant<Message, Message::kSub>{});
    case Message::kMul:
      return body(std::integral_constant<Message, Message::kMul>{});
    case Message::kDiv:
      return body(std::integral_constant<Message, Message::kDiv>{});
  }
  PG_CHECK_ARG(false, "message must be 0..5");
}

/// Features of messages: x by column of the adjacency, e by edge. The number of columns of e
/// divides the number of columns of x: value h of an edge belongs to the columns h * group .. (h +
/// 1) * group
/// - 1 of x.
struct Operands {
  Message message = Message::kCopyU;
  const void* x = nullptr;  // [num_columns, columns]; null if the message does not use it
  const void* e = nullptr;  // [num_edges, e_columns]; likewise
  int64_t columns = 0;
  int64_t e_columns = 1;
  /// [num_columns] the address of each row of x, 0 for a row of zeros; null: the rows are adjacent,
  /// from x on. With addresses, x is the bitwise or of all addresses.
  const int64_t* x_rows = nullptr;
  /// Elements from a row of x to the next one, at least `columns`; 0: `columns`. Used where
  /// messages are reduced at rows.
  int64_t x_stride = 0;
  /// [num_columns] the address of the scales of each row at x_rows; null: the rows have them, or
  /// there are none.
  const int64_t* scale_rows = nullptr;
  /// How the rows at the addresses are stored; x contains the bits of their size, too. Without
  /// columns: in the operation's elements.
  RowCodec codec = {};

  PG_HD bool is_narrow() const { return codec.columns > 0; }
  PG_HD bool has_scales_apart() const { return scale_rows != nullptr; }
  /// The address of the scales of the row of x at `column`.
  PG_HD const char* scales_of(int64_t column) const {
    const int64_t* rows = has_scales_apart() ? scale_rows : x_rows;
    return reinterpret_cast<const char*>(rows[column]) + codec.scales_begin;
  }
  PG_HD int64_t row_stride() const { return x_stride > 0 ? x_stride : columns; }
  PG_HD int64_t group() const { return columns / (e_columns > 0 ? e_columns : 1); }
};

}  // namespace peergraph
