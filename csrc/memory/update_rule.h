// An optimizer's update of one element of a row: torch's formulas for sparse gradients, with the
// same bits on CPU and GPU.
#pragma once

#include <cstdint>

#include "common/check.h"
#include "common/exact.h"
#include "common/host_device.h"

namespace peergraph {

enum class Optimizer : int32_t { kSgd = 0, kAdagrad = 1, kAdam = 2 };

/// An optimizer and its numbers for one step.
struct UpdateRule {
  Optimizer optimizer = Optimizer::kSgd;
  double step_size = 0;   // the learning rate, with all corrections
  double grad_scale = 1;  // gradients are multiplied by it first
  double eps = 0;
  double beta1 = 0, beta2 = 0;  // Adam
};

/// weight - step_size * grad.
template <typename A>
struct Sgd {
  static constexpr int kStates = 0;
  A step_size;

  explicit Sgd(const UpdateRule& rule) : step_size(static_cast<A>(rule.step_size)) {}

  PG_HD A operator()(A weight, A grad, A*) const {
    return add_exact(weight, -multiply_exact(step_size, grad));
  }
};

/// Its state is the sum of the squared gradients.
template <typename A>
struct Adagrad {
  static constexpr int kStates = 1;
  A step_size, eps;

  explicit Adagrad(const UpdateRule& rule)
      : step_size(static_cast<A>(rule.step_size)), eps(static_cast<A>(rule.eps)) {}

  PG_HD A operator()(A weight, A grad, A* state) const {
    state[0] = add_exact(state[0], multiply_exact(grad, grad));
    const A deviation = add_exact(sqrt_exact(state[0]), eps);
    return add_exact(weight, -multiply_exact(step_size, divide_exact(grad, deviation)));
  }
};

/// torch.optim.SparseAdam: its states are the running averages of gradient and squared gradient.
template <typename A>
struct Adam {
  static constexpr int kStates = 2;
  A step_size, eps, toward1, toward2;

  explicit Adam(const UpdateRule& rule)
      : step_size(static_cast<A>(rule.step_size)),
        eps(static_cast<A>(rule.eps)),
        toward1(static_cast<A>(1 - rule.beta1)),
        toward2(static_cast<A>(1 - rule.beta2)) {}

  PG_HD A operator()(A weight, A grad, A* state) const {
    state[0] = add_exact(state[0], multiply_exact(toward1, add_exact(grad, -state[0])));
    const A square = multiply_exact(grad, grad);
    state[1] = add_exact(state[1], multiply_exact(toward2, add_exact(square, -state[1])));
    const A deviation = add_exact(sqrt_exact(state[1]), eps);
    return add_exact(weight, -multiply_exact(step_size, divide_exact(state[0], deviation)));
  }
};

/// Calls body(rule of the optimizer on numbers of type A).
template <typename A, typename Body>
void with_rule(const UpdateRule& rule, Body&& body) {
  switch (rule.optimizer) {
    case Optimizer::kSgd:
      return body(Sgd<A>(rule));
    case Optimizer::kAdagrad:
      return body(Adagrad<A>(rule));
    case Optimizer::kAdam:
      return body(Adam<A>(rule));
  }
  PG_CHECK_ARG(false, "optimizer must be 0..2");
}

}  // namespace peergraph
