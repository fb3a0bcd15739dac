// Memory that is closed while others may work with it: whoever works with it is waited for, and
// nobody begins to once it is closed.
//
// A region has a lease. What refers to the region's memory from Python is a Leased view, and the
// view itself is reached through an Opened, which holds the leases meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace peergraph {

class Lease {
 public:
  /// From now on nobody enters; whoever is inside stays. `why` is what the others are told.
  /// Returns whether it was open.
  bool close(const std::string& why);

  bool closed() const { return closed_.load(); }

  /// Throws std::runtime_error with the reason once it is closed.
  void check() const;

  /// Whether the calling thread is inside, and whether others of this process are.
  bool used_here() const;
  bool used_elsewhere() const;

 private:
  friend class Entered;

  void enter();
  void leave() noexcept;
  uint32_t users() const;

  std::atomic<bool> closing_{false};
  std::atomic<bool> closed_{false};
  // How many are inside, and, in the upper half, in which process: a forked child has no threads
  // of its parent.
  std::atomic<uint64_t> users_{0};
  std::string why_;
};

using Leases = std::vector<std::shared_ptr<Lease>>;

/// Adds those that are not among them yet.
void add_leases(Leases& to, const Leases& from);

/// Is inside of leases for as long as it lives, in one thread; throws std::runtime_error where one
/// of them is closed.
class Entered {
 public:
  explicit Entered(const Leases& leases);
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  void leave(size_t count) noexcept;

  const Leases& leases_;
};

template <typename View>
class Opened;

/// What refers to memory that may be closed, as Python holds it.
template <typename View>
class Leased {
 public:
  Leased() = default;
  Leased(View view, Leases leases) : view_(std::move(view)), leases_(std::move(leases)) {}

  const Leases& leases() const { return leases_; }

  /// For what is made of this view and takes over its leases.
  const View& unopened() const { return view_; }

 private:
  friend class Opened<View>;

  View view_{};
  Leases leases_;
};

/// The view, whose memory stays as long as this lives; must not outlive the Leased.
template <typename View>
class Opened {
 public:
  explicit Opened(const Leased<View>& leased) : entered_(leased.leases_), view_(leased.view_) {}

  const View& operator*() const { return view_; }
  const View* operator->() const { return &view_; }

 private:
  Entered entered_;
  const View& view_;
};

}  // namespace peergraph
