// Refers to a function object without its type.
#pragma once

namespace peergraph {

/// Calls an object that outlives it. What takes a FunctionRef is compiled once, not for each
/// object: for functions that are called once for a piece of work, not once for an element.
template <typename... Args>
class FunctionRef {
 public:
  template <typename Body>
  FunctionRef(const Body& body)
      : body_(&body), call_([](const void* object, Args... args) {
          (*static_cast<const Body*>(object))(args...);
        }) {}

  void operator()(Args... args) const { call_(body_, args...); }

 private:
  const void* body_;
  void (*call_)(const void* object, Args... args);
};

}  // namespace peergraph
