#include "sampling/append_unique/append_unique.h"

#include "common/vectors.h"

namespace peergraph {
namespace {

constexpr int64_t kPrefetchAhead = 64;

/// Calls visit(slot, target, node) for all slots of targets [begin, end), in order.
template <typename Visit>
void for_each_slot(const Hop& hop, const NodeIndex& index, int64_t begin, int64_t end,
                   const Visit& visit) {
  const int64_t last = hop.offsets[end];
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t slot = hop.offsets[t]; slot < hop.offsets[t + 1]; ++slot) {
      const int64_t ahead = slot + kPrefetchAhead;
      if (index.direct != nullptr && ahead < last)
        prefetch_far(&index.direct[load_id(hop.sources, hop.index_bytes, ahead)]);
      visit(slot, t, load_id(hop.sources, hop.index_bytes, slot));
    }
  }
}

/// append_in_turn with a direct map. New nodes are unpredictable, so there is no branch: the
/// row is written for every slot, and counts only if the node is new.
template <typename Id>
void append_directly(const Hop& hop, NodeList& nodes, int64_t begin, int64_t end) {
  const NodeIndex index = nodes.index;
  uint32_t* const direct = index.direct;
  Id* const sources = static_cast<Id*>(hop.sources);
  int64_t count = nodes.count;
  const auto append = [&](int64_t slot) {
    const Id node = sources[slot];
    const uint32_t entry = direct[node] - index.base;
    const bool is_new = !index.is_row(entry);
    // A conditional expression would be compiled to a branch.
    const uint32_t row = entry + ((static_cast<uint32_t>(count) - entry) & -uint32_t{is_new});
    nodes.ids[count] = node;
    count += is_new;
    direct[node] = index.row_word(row);
    sources[slot] = static_cast<Id>(row);
  };
  int64_t slot = begin;
  for (; slot + kPrefetchAhead < end; ++slot) {
    prefetch_far(direct + sources[slot + kPrefetchAhead]);
    append(slot);
  }
  for (; slot < end; ++slot) append(slot);
  nodes.count = count;
}

/// The word of a node; inserts a new node with the word kUnknown. Several threads may call it
/// at once.
uint32_t* find_or_insert(const NodeIndex& index, int64_t tree, int64_t node) {
  if (index.direct != nullptr) return index.direct + node;
  const uint64_t key = index.key(tree, node);
  uint64_t at = index.home(key);
  while (true) {
    uint64_t seen = __atomic_load_n(index.keys + at, __ATOMIC_RELAXED);
    if (seen == NodeIndex::kEmpty)
      __atomic_compare_exchange_n(index.keys + at, &seen, key, false, __ATOMIC_RELAXED,
                                  __ATOMIC_RELAXED);
    if (seen == NodeIndex::kEmpty || seen == key) return index.values + at;
    at = (at + 1) & index.mask;
  }
}

void keep_least(uint32_t* word, uint32_t claim) {
  uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (claim < seen && !__atomic_compare_exchange_n(word, &seen, claim, true, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {
  }
}

/// The first slot of a new node.
struct First {
  uint32_t slot;
  uint32_t target;
};

/// Finds the first slots of new nodes; other slots get their row, or ~slot of the first slot.
void select_first(const Hop& hop, const NodeIndex& index, int64_t begin, int64_t end,
                  std::vector<First>& firsts) {
  for_each_slot(hop, index, begin, end, [&](int64_t slot, int64_t target, int64_t node) {
    const uint32_t entry = index.get(hop.tree(target), node);
    const int64_t claimed = int64_t{entry} - index.first_claim;
    if (index.is_row(entry))
      store_id(hop.sources, hop.index_bytes, slot, entry);
    else if (claimed == slot)
      firsts.push_back({static_cast<uint32_t>(slot), static_cast<uint32_t>(target)});
    else
      store_id(hop.sources, hop.index_bytes, slot, ~claimed);
  });
}

void give_rows(const Hop& hop, const NodeList& nodes, const std::vector<First>& firsts,
               int64_t row) {
  for (const First& first : firsts) {
    const int64_t node = load_id(hop.sources, hop.index_bytes, first.slot);
    const int64_t tree = hop.tree(first.target);
    nodes.ids[row] = node;
    if (nodes.trees != nullptr) nodes.trees[row] = static_cast<int32_t>(tree);
    if (hop.looked_up_later) nodes.index.set(tree, node, nodes.index.row_word(row));
    store_id(hop.sources, hop.index_bytes, first.slot, row++);
  }
}

}  // namespace

void append_in_turn(const Hop& hop, NodeList& nodes, int64_t begin, int64_t end) {
  if (nodes.index.direct != nullptr) {
    const auto append = hop.index_bytes == 4 ? append_directly<int32_t> : append_directly<int64_t>;
    return append(hop, nodes, hop.offsets[begin], hop.offsets[end]);
  }
  for_each_slot(hop, nodes.index, begin, end, [&](int64_t slot, int64_t target, int64_t node) {
    const int64_t tree = hop.tree(target);
    uint32_t& word = nodes.index.insert(tree, node);
    if (word == kUnknown) {
      word = static_cast<uint32_t>(nodes.count);
      nodes.ids[nodes.count] = node;
      if (nodes.trees != nullptr) nodes.trees[nodes.count] = static_cast<int32_t>(tree);
      ++nodes.count;
    }
    store_id(hop.sources, hop.index_bytes, slot, word);
  });
}

void claim_slots(const Hop& hop, const NodeIndex& index, int64_t begin, int64_t end) {
  for_each_slot(hop, index, begin, end, [&](int64_t slot, int64_t target, int64_t node) {
    keep_least(find_or_insert(index, hop.tree(target), node), index.claim_word(slot));
  });
}

void append_claimed(const Hop& hop, NodeList& nodes, int64_t pieces, Workers& workers) {
  const auto bound = [&](int64_t piece) { return hop.num_targets * piece / pieces; };
  std::vector<std::vector<First>> firsts(pieces);
  workers.run_pieces(pieces, [&](int64_t piece) {
    select_first(hop, nodes.index, bound(piece), bound(piece + 1), firsts[piece]);
  });
  std::vector<int64_t> rows;
  for (const auto& of_piece : firsts) {
    rows.push_back(nodes.count);
    nodes.count += static_cast<int64_t>(of_piece.size());
  }
  workers.run_pieces(pieces,
                     [&](int64_t piece) { give_rows(hop, nodes, firsts[piece], rows[piece]); });
  workers.run_pieces(pieces, [&](int64_t piece) {
    for (int64_t slot = hop.offsets[bound(piece)]; slot < hop.offsets[bound(piece + 1)]; ++slot) {
      const int64_t row = load_id(hop.sources, hop.index_bytes, slot);
      if (row < 0)
        store_id(hop.sources, hop.index_bytes, slot, load_id(hop.sources, hop.index_bytes, ~row));
    }
  });
}

}  // namespace peergraph
