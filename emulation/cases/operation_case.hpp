// One case of an operation: host data, and the operations to run on it on any backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

/// Where the rows of a tensor lie in backend memory, so that alignment varies.
struct RowLayout {
  std::int64_t gap = 0;     ///< elements between rows
  std::int64_t offset = 0;  ///< elements before the first row
};

/// A matrix in host memory, contiguous.
struct HostTensor {
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::vector<std::byte> data;
  bool output = false;                   ///< written by the case
  bool contiguous = false;               ///< the operation accepts no gaps between rows
  std::optional<RowLayout> layout = {};  ///< nothing: that of the comparison
};

/// Operations with their tensors; `run` receives the views in the same order.
struct OperationCase {
  std::string name;  ///< "gemm sm90_wgmma_fp8/fast", "rmsnorm_backward", ...
  std::string what;  ///< shapes and distribution, for messages
  std::vector<HostTensor> tensors;
  std::function<void(Backend&, const std::vector<TensorView>&)> run;
};

/// Receives each case as it is drawn: all cases of a large round together would exceed the memory.
using CaseVisitor = std::function<void(const OperationCase&)>;

}  // namespace fp8lab
