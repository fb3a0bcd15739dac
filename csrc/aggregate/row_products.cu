#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "aggregate/row_products.h"
#include "common/cuda_check.cuh"

namespace peergraph {
namespace {

// The part of the cuBLASLt API that is called here, the same in CUDA 12 and 13. It is declared
// again because the library comes with torch: builds have neither its headers nor the library
// itself.
using Status = int;  // 0: success
using Object = void*;

struct Heuristic {
  std::array<uint64_t, 8> algorithm;
  size_t workspace_bytes;
  Status status;
  float waves;
  std::array<int, 4> reserved;
};

enum ComputeType : int { kCompute32F = 68 };
enum DataType : int { kReal32F = 0, kReal16F = 2, kReal16BF = 14 };
enum DescAttribute : int { kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute : int { kColumns = 3 };
enum PreferenceAttribute : int { kWorkspaceBytes = 1, kFirstAlignment = 5, kLastAlignment = 8 };
constexpr uint32_t kEpilogueBias = 4;

struct Library {
  Status (*create)(Object*);
  Status (*desc_create)(Object*, int compute, int scale);
  Status (*desc_set)(Object, int attribute, const void*, size_t);
  Status (*layout_create)(Object*, int type, uint64_t rows, uint64_t columns, int64_t stride);
  Status (*layout_set)(Object, int attribute, const void*, size_t);
  Status (*preference_create)(Object*);
  Status (*preference_set)(Object, int attribute, const void*, size_t);
  Status (*preference_destroy)(Object);
  Status (*choose)(Object, Object desc, Object a, Object b, Object c, Object d, Object preference,
                   int count, Heuristic*, int* returned);
  Status (*multiply)(Object, Object desc, const void* alpha, const void* a, Object a_layout,
                     const void* b, Object b_layout, const void* beta, const void* c,
                     Object c_layout, void* d, Object d_layout, const void* algorithm,
                     void* workspace, size_t workspace_bytes, cudaStream_t);
};

template <typename Function>
bool load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::optional<Library> load_library() {
  void* loaded = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
    if (loaded == nullptr) loaded = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return std::nullopt;
  Library all{};
  const bool is_complete =
      load(loaded, "cublasLtCreate", all.create) &&
      load(loaded, "cublasLtMatmulDescCreate", all.desc_create) &&
      load(loaded, "cublasLtMatmulDescSetAttribute", all.desc_set) &&
      load(loaded, "cublasLtMatrixLayoutCreate", all.layout_create) &&
      load(loaded, "cublasLtMatrixLayoutSetAttribute", all.layout_set) &&
      load(loaded, "cublasLtMatmulPreferenceCreate", all.preference_create) &&
      load(loaded, "cublasLtMatmulPreferenceSetAttribute", all.preference_set) &&
      load(loaded, "cublasLtMatmulPreferenceDestroy", all.preference_destroy) &&
      load(loaded, "cublasLtMatmulAlgoGetHeuristic", all.choose) &&
      load(loaded, "cublasLtMatmul", all.multiply);
  return is_complete ? std::optional(all) : std::nullopt;
}

/// A product as the library sees it: by columns, out^T [n, m] = a [n, k] b [k, m], where a is made
/// of `right` and b of `left`.
struct Shape {
  uint64_t n, m, k;
  bool transposes_a, transposes_b;

  explicit Shape(const RowProduct& op, uint64_t rows)
      : n(op.out_columns),
        m(op.sums_rows ? op.left_columns : rows),
        k(op.sums_rows ? rows : op.left_columns),
        transposes_a(op.is_transposed),
        transposes_b(op.sums_rows) {}
};

/// A kernel and what it is called with. Layouts get the number of rows before each call.
struct Plan {
  Object desc = nullptr, a = nullptr, b = nullptr, out = nullptr;
  Heuristic choice{};
  bool is_usable = false;
};

constexpr int kDigits = 6;  // binary ones of the numbers of rows that kernels are chosen for
constexpr size_t kMostWorkspace = size_t{32} << 20;
constexpr uintptr_t kLeastAlignment = 16, kMostAlignment = 256;

/// The next number of kDigits digits and zeros.
uint64_t rounded_up(uint64_t rows) {
  int zeros = 0;
  while (rows >> zeros >= uint64_t{1} << kDigits) ++zeros;
  return ((rows + (uint64_t{1} << zeros) - 1) >> zeros) << zeros;
}

uintptr_t alignment_of(const RowProduct& op) {
  const auto bits = reinterpret_cast<uintptr_t>(op.left) | reinterpret_cast<uintptr_t>(op.right) |
                    reinterpret_cast<uintptr_t>(op.out);
  if (reinterpret_cast<uintptr_t>(op.bias) % kLeastAlignment != 0) return 1;
  return bits % kMostAlignment == 0 ? kMostAlignment : bits % kLeastAlignment == 0 ? 16 : 1;
}

int type_of(DType dtype) {
  return dtype == DType::kFloat32 ? kReal32F : dtype == DType::kFloat16 ? kReal16F : kReal16BF;
}

/// The products of one GPU. Calls take turns: layouts are changed.
class Products {
 public:
  bool multiply(const RowProduct& op, const Launch& launch, const Allocate& allocate) {
    if (!library()) return false;
    const uintptr_t alignment = alignment_of(op);
    if (alignment < kLeastAlignment) return false;
    const std::lock_guard lock(mutex_);
    if (handle_ == nullptr && library()->create(&handle_) != 0) return false;
    const Key key = {static_cast<int64_t>(rounded_up(op.rows)),
                     op.left_columns,
                     op.out_columns,
                     static_cast<int64_t>(op.dtype) * 8 + static_cast<int64_t>(op.out_dtype),
                     op.is_transposed + 2 * op.sums_rows + 4 * (op.bias != nullptr),
                     static_cast<int64_t>(alignment)};
    const auto place = plans_.find(key);
    const Plan& plan = place != plans_.end()
                           ? place->second
                           : plans_.emplace(key, plan_of(op, alignment)).first->second;
    return plan.is_usable && run(plan, op, launch, allocate);
  }

 private:
  using Key = std::array<int64_t, 6>;

  static const std::optional<Library>& library() {
    static const std::optional<Library> loaded = load_library();
    return loaded;
  }

  Plan plan_of(const RowProduct& op, uintptr_t alignment) const {
    const Library& lt = *library();
    const Shape shape(op, rounded_up(op.rows));
    const int type = type_of(op.dtype);
    Plan plan;
    Object preference = nullptr;
    const auto layout = [&](Object* result, int of_type, uint64_t rows, uint64_t columns) {
      return lt.layout_create(result, of_type, rows, columns, static_cast<int64_t>(rows)) == 0;
    };
    const auto prefer = [&](int attribute, auto value) {
      return lt.preference_set(preference, attribute, &value, sizeof(value)) == 0;
    };
    const auto describe = [&](int attribute, auto value) {
      return lt.desc_set(plan.desc, attribute, &value, sizeof(value)) == 0;
    };
    bool good = lt.desc_create(&plan.desc, kCompute32F, kReal32F) == 0 &&
                describe(kTransposeA, int32_t{shape.transposes_a}) &&
                describe(kTransposeB, int32_t{shape.transposes_b});
    if (op.bias != nullptr)  // Of the pointer, the alignment counts now.
      good = good && describe(kEpilogue, kEpilogueBias) && describe(kBiasPointer, kLeastAlignment);
    good = good &&
           (shape.transposes_a ? layout(&plan.a, type, shape.k, shape.n)
                               : layout(&plan.a, type, shape.n, shape.k)) &&
           (shape.transposes_b ? layout(&plan.b, type, shape.m, shape.k)
                               : layout(&plan.b, type, shape.k, shape.m)) &&
           layout(&plan.out, type_of(op.out_dtype), shape.n, shape.m) &&
           lt.preference_create(&preference) == 0 && prefer(kWorkspaceBytes, kMostWorkspace);
    for (int attribute = kFirstAlignment; attribute <= kLastAlignment; ++attribute)
      good = good && prefer(attribute, static_cast<uint32_t>(alignment));
    int returned = 0;
    plan.is_usable = good &&
                     lt.choose(handle_, plan.desc, plan.a, plan.b, plan.out, plan.out, preference,
                               1, &plan.choice, &returned) == 0 &&
                     returned == 1 && plan.choice.status == 0;
    if (preference != nullptr) lt.preference_destroy(preference);
    return plan;
  }

  bool run(const Plan& plan, const RowProduct& op, const Launch& launch,
           const Allocate& allocate) const {
    const Library& lt = *library();
    const auto rows = static_cast<uint64_t>(op.rows);
    // The library stores matrices by columns, so our rows are its columns.
    for (const Object layout : {plan.b, op.sums_rows ? plan.a : plan.out})
      if (lt.layout_set(layout, kColumns, &rows, sizeof(rows)) != 0) return false;
    if (op.bias != nullptr && lt.desc_set(plan.desc, kBiasPointer, &op.bias, sizeof(op.bias)) != 0)
      return false;
    const size_t bytes = plan.choice.workspace_bytes;
    void* const workspace = bytes == 0 ? nullptr : allocate(static_cast<int64_t>(bytes));
    const float alpha = 1, beta = op.adds ? 1 : 0;
    return lt.multiply(handle_, plan.desc, &alpha, op.right, plan.a, op.left, plan.b, &beta, op.out,
                       plan.out, op.out, plan.out, plan.choice.algorithm.data(), workspace, bytes,
                       reinterpret_cast<cudaStream_t>(launch.stream)) == 0;
  }

  std::mutex mutex_;
  Object handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace

bool multiply_rows_cuda(const RowProduct& op, const Launch& launch, const Allocate& allocate) {
  constexpr int kMostDevices = 64;
  // Never destroyed: the library may be unloaded before.
  static auto* const of_devices = new std::array<Products, kMostDevices>();
  if (launch.device >= kMostDevices) return false;
  DeviceGuard guard(launch.device);
  return (*of_devices)[launch.device].multiply(op, launch, allocate);
}

}  // namespace peergraph
