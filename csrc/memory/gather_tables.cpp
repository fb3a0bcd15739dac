#include "memory/gather_tables.h"

#include <utility>

#include "common/check.h"
#include "memory/row_lists.h"
#include "memory/stored_rows.h"
#include "memory/torch_tensor.h"

namespace peergraph {
namespace {

constexpr int64_t kWord = sizeof(int64_t);

class Gather {
 public:
  Gather(const TorchFunctions& torch, int64_t* sizes, const Launch& launch)
      : torch_(torch),
        launch_(launch),
        lists_([this](int64_t num_bytes) { return scratch(num_bytes); }, sizes, launch) {}

  std::vector<TorchTensor> tables(const std::vector<TableRead>& reads) {
    std::vector<TorchTensor> rows(reads.size());
    for (size_t i = 0; i < reads.size(); ++i)
      if (reads[i].elements != nullptr) rows[i] = begin_lists(reads[i]);
    gather();
    lists_.write_ends();
    // While the host waits for the sizes of lists, a GPU gathers the other rows.
    for (size_t i = 0; i < reads.size(); ++i)
      if (reads[i].elements == nullptr) rows[i] = rows_of(*reads[i].table, reads[i].ids);
    gather();
    lists_.write_places();
    std::vector<TorchTensor> result;
    auto lists = lists_.lists().begin();
    for (size_t i = 0; i < reads.size(); ++i) {
      result.push_back(std::move(rows[i]));
      if (reads[i].elements != nullptr) result.push_back(elements_of(reads[i], *lists++));
    }
    gather();
    return result;
  }

 private:
  /// Adds a gather of the bounds of lists; returns the memory of their ends.
  TorchTensor begin_lists(const TableRead& read) {
    const StoredTable& table = *read.table;
    PG_CHECK_ARG(table.dtype == torch_.int64 && table.row_shape.size() == 1 && table.row_bytes > 0,
                 "the bounds of lists must be int64 [rows, columns + 1]");
    RowLists lists;
    lists.rows = read.ids.count;
    lists.columns = table.row_bytes / kWord - 1;
    lists.num_stored = read.elements->table.unopened().map.rows;
    void* const bounds = scratch(checked_product(lists.rows, table.row_bytes));
    add(table, read.ids, bounds);
    lists.bounds = static_cast<const int64_t*>(bounds);
    const int64_t count = lists.count() + 1;
    TorchTensor ends = tensor({count}, torch_.int64, count * kWord);
    lists.ends = static_cast<int64_t*>(ends.data());
    lists_.add(lists);
    return ends;
  }

  TorchTensor elements_of(const TableRead& read, const RowLists& lists) {
    IdList ids;
    ids.ids = lists.places;
    ids.id_bytes = kWord;
    ids.count = lists.num_elements;
    ids.max_blocks = read.ids.max_blocks;
    return rows_of(*read.elements, ids);
  }

  /// Adds a gather; returns the memory of its rows.
  TorchTensor rows_of(const StoredTable& table, const IdList& ids) {
    std::vector<int64_t> sizes{ids.count};
    sizes.insert(sizes.end(), table.row_shape.begin(), table.row_shape.end());
    TorchTensor rows = tensor(sizes, table.dtype, checked_product(ids.count, table.row_bytes));
    add(table, ids, rows.data());
    return rows;
  }

  void add(const StoredTable& table, const IdList& ids, void* out) {
    reads_.push_back({&table.table, table.codec ? &*table.codec : nullptr,
                      table.scales ? &*table.scales : nullptr, ids, static_cast<char*>(out)});
  }

  /// Does the gathers that were added.
  void gather() {
    gather_stored(reads_, [this](int64_t num_bytes) { return scratch(num_bytes); }, launch_);
    reads_.clear();
  }

  TorchTensor tensor(const std::vector<int64_t>& sizes, int32_t dtype, int64_t num_bytes) const {
    return torch_tensor(torch_, launch_.device, sizes, dtype, num_bytes);
  }

  /// Memory until the end, which later work of the stream may use.
  void* scratch(int64_t num_bytes) {
    scratch_.push_back(tensor({num_bytes}, torch_.uint8, num_bytes));
    return scratch_.back().data();
  }

  const TorchFunctions& torch_;
  const Launch& launch_;
  std::vector<TorchTensor> scratch_;
  std::vector<StoredRead> reads_;
  ListPlaces lists_;
};

}  // namespace

std::vector<TorchTensor> gather_tables(const std::vector<TableRead>& reads,
                                       const TorchFunctions& torch, int64_t* sizes,
                                       const Launch& launch) {
  return Gather(torch, sizes, launch).tables(reads);
}

}  // namespace peergraph
