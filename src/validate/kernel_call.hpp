// One call of a backend operation on host data, run on two backends and compared byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

/// A matrix in host memory, contiguous.
struct HostTensor {
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::vector<std::byte> data;
  bool output = false;      ///< compared after the call
  bool contiguous = false;  ///< the operation takes no gaps between rows
};

/// An operation with its tensors; `run` gets their views in the same order.
struct KernelCall {
  std::string kernel;  ///< "gemm sm90_wgmma_fp8/fast", "rmsnorm_backward", ...
  std::string what;    ///< shapes and distribution, for messages
  std::vector<HostTensor> tensors;
  std::function<void(Backend&, const std::vector<TensorView>&)> run;
};

/// Where two outputs differ first.
struct KernelMismatch {
  std::string kernel, what;
  std::size_t tensor = 0;
  std::int64_t row = 0, col = 0;
  std::uint64_t expected = 0, actual = 0;  ///< bits
  std::int64_t count = 0;                  ///< differing elements of the call
  bool guard = false;                      ///< memory around a tensor was written instead
};

/// Runs `call` once on `expected` and `repeats` times on `tested`, each time from the same initial
/// data: a difference between repeats is a race. Every tensor lies inside a larger buffer of a
/// known byte, with gaps between its rows where the operation allows them. Adds the elements of the
/// outputs to `compared`. Nothing is returned when all bits agree and no byte outside changed.
std::optional<KernelMismatch> compare_call(const KernelCall& call, Backend& expected,
                                           Backend& tested, int repeats, std::uint64_t& compared);

}  // namespace fp8lab
