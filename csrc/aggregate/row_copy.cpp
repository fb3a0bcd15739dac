#include "aggregate/row_copy.h"

#include <vector>

#include "aggregate/cpu_rows.h"
#include "aggregate/spmm.h"
#include "common/parallel.h"
#include "memory/decode_gather.h"

namespace peergraph {

void copy_rows_cpu(const RowCopy& op, int num_threads) {
  check_out_dtype(op.dtype, op.out_dtype);
  const int64_t columns = op.operands.columns;
  with_copied_dtypes(op.dtype, op.out_dtype, [&](auto from, auto to) {
    using T = decltype(from);
    using Out = decltype(to);
    const auto copy = [&](int64_t begin, int64_t end) {
      std::vector<T> decoded(op.operands.is_narrow() ? columns : 0);
      for (int64_t i = begin; i < end; ++i) {
        const T* row = row_of<T>(op.operands, i);
        if (op.operands.is_narrow() && row != nullptr) {
          const char* stored = reinterpret_cast<const char*>(row);
          decode_columns(stored, op.operands.scales_of(i), op.operands.codec, 0, columns,
                         decoded.data());
          row = decoded.data();
        }
        Out* out = static_cast<Out*>(op.out) + i * op.out_stride;
        for (int64_t c = 0; c < columns; ++c) {
          if (row == nullptr)
            out[c] = Out{};
          else
            narrow(widen(row[c]), out + c);
        }
      }
    };
    parallel_for(op.num_rows, row_grain(op.num_rows, 0, columns), num_threads, copy, torch_team());
  });
}

}  // namespace peergraph
