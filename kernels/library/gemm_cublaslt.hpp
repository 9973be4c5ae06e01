// GEMM through cuBLASLt: the library call that replaces gemm.hpp, with the same bits.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// Returns why cuBLASLt on Hopper does not support this GEMM for any shape
/// (emulation/specification.md, "Calls of cuBLASLt"), or an empty string. The emulator's own
/// refusals (fp8lab::gemm_refusal) come first.
std::string cublaslt_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b);

/// Which of our operands becomes the library's A. The library's D is column-major: with ours_b it
/// is our row-major D itself, with ours_a its transpose, which another kernel transposes back. The
/// choice affects the bits if the library applies its two scales one after another.
enum class LibraryA : std::uint8_t { ours_a, ours_b };

/// Returns the choice that gives the plan's bits. For 1x128 by 1x128 the library multiplies by
/// its B's scale first, so b_then_a needs our B there. For scales per row it multiplies by its
/// A's scale first, and the plan by our A's. Otherwise both choices give the same bits, and
/// ours_b needs no transpose.
LibraryA library_a(const GemmPlan& plan);

/// Owns a handle of the library.
class CublasLt {
 public:
  /// Throws RuntimeFailure if the library cannot be loaded (cublaslt_calls.hpp) or there is no
  /// device.
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  cublasLtHandle_t handle() const { return handle_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

/// For example "cuBLASLt 13.1.0".
std::string cublaslt_version();

/// A copy of the arguments of ops::Gemm.
struct GemmCall {
  GemmSpec spec;
  QuantizedOperand a, b;
  TensorView bias;
  bool accumulate = false;
  TensorView d;
};

/// One GEMM of the library that can run any number of times.
class CublasLtGemm {
 public:
  /// Throws Error as ops::Gemm does, and for calls that the library does not support (see
  /// cublaslt_refusal): M, N and K must be multiples of 16, rows 16-byte aligned; a bias must be
  /// bf16 and `library_a` ours_b.
  CublasLtGemm(const CublasLt& library, const GemmCall& call, LibraryA library_a);

  /// Returns the size in bytes of the device memory that prepare() needs.
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  /// Enqueues the copies of the scales into the library's layouts, and chooses the first
  /// algorithm of its heuristic, regardless of GemmSpec::split_k, or the first with `split_k`
  /// ranges of K. Throws Error if there is none. Preconditions: `scratch` is aligned to 256
  /// bytes and outlives the runs.
  void prepare(Context& context, std::byte* scratch, std::optional<int> split_k);

  /// Enqueues the GEMM. Does not repeat the work of prepare().
  void run(Context& context) const;

  /// Returns the algorithm's number of ranges of K (GemmSpec::split_k).
  /// Precondition: prepare() has run.
  int split_k() const { return split_k_; }
  /// Describes the algorithm in one line. Precondition: prepare() has run.
  const std::string& algorithm() const { return algorithm_name_; }

 private:
  struct Destroy {
    void operator()(cublasLtMatmulDescOpaque_t* operation) const;
    void operator()(cublasLtMatrixLayoutOpaque_t* layout) const;
  };
  using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy>;
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy>;

  const QuantizedOperand& operand(int i) const { return (i == 0) == swapped_ ? call_.b : call_.a; }
  void set_operation();
  void set_layouts();
  void place_scratch();
  void copy_scales(Context& context, int i, std::byte* scratch);
  void choose_algorithm(std::optional<int> split_k);
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms(std::size_t workspace) const;

  const CublasLt& library_;
  GemmCall call_;
  bool swapped_;  ///< the library's A is our B
  Operation operation_;
  std::array<Layout, 2> operand_layouts_;
  Layout c_layout_, d_layout_;
  bool separate_c_ = false;                   ///< C is a copy of D
  TensorView c_, d_;                          ///< the library's C and D as row-major: (N', M')
  std::array<std::size_t, 2> scale_bytes_{};  ///< in scratch, followed by D and the workspace
  std::size_t d_bytes_ = 0, scratch_bytes_ = 0;
  std::byte* workspace_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  int split_k_ = 1;
  std::string algorithm_name_;
};

}  // namespace fp8lab::cuda
