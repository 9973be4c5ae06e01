// Records the outputs of a step's operations: hashes of all, and the contents of a single one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "src/replay/tensor_hashes.hpp"

namespace fp8lab {

/// One output of one operation of a step.
struct TracedOutput {
  std::int64_t operation = 0;  ///< index among the operations and uploads of the step, from 0
  std::int64_t index = 0;      ///< index among the outputs of the operation, from 0
  Label label;
  std::string kind;  ///< operation_name the operation
  std::string name;  ///< OperationTensor::name; for an upload its contents
  std::string part;  ///< part_of the output
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::uint64_t hash = 0;

  /// Returns true for the same output of the same operation, regardless of its bits.
  bool is_same_as(const TracedOutput& other) const;
};

/// Hashes every output of a step, in the order of the operations.
class TraceObserver final : public OperationObserver {
 public:
  /// `hashes` computes the hashes in the memory of the observed backend.
  /// Precondition: `hashes` outlives this.
  explicit TraceObserver(TensorHashes& hashes) : hashes_(hashes) {}

  void after(const AnyOperation& op, const Label& label) override;
  /// Returns the outputs. Call once, after the step.
  std::vector<TracedOutput> take();

 private:
  TensorHashes& hashes_;
  std::int64_t operation_ = 0;
  std::vector<TracedOutput> outputs_;
};

/// A matrix on the host.
struct HostCopy {
  TensorView view;  ///< view of `bytes`; empty if there is no matrix
  std::vector<std::byte> bytes;
};
HostCopy download(Backend& backend, const TensorView& view);

/// A GEMM with all its inputs, on the host.
struct CapturedGemm {
  GemmSpec spec;
  QuantizedOperand a, b;  ///< operands with the codes and scales below
  HostCopy a_codes, a_scales, b_codes, b_scales, bias;
  HostCopy before;       ///< previous contents of d, if the GEMM accumulates
  bool is_alone = true;  ///< d is the plain result of the GEMM: no inverse transform, nothing added
};

/// One operation of a step with its outputs.
struct CapturedOperation {
  std::vector<HostCopy> outputs;
  std::vector<std::optional<QuantSpec>> quantizers;  ///< quantizer of each output's operand
  std::optional<CapturedGemm> gemm;
};

/// Copies the operation with a given index.
class CaptureObserver final : public OperationObserver {
 public:
  CaptureObserver(Backend& backend, std::int64_t operation)
      : backend_(backend), wanted_(operation) {}

  void before(const AnyOperation& op, const Label& label) override;
  void after(const AnyOperation& op, const Label& label) override;
  /// Returns the operation. Call once, after the step.
  CapturedOperation take() { return std::move(captured_); }

 private:
  Backend& backend_;
  std::int64_t wanted_, operation_ = 0;
  HostCopy before_;
  CapturedOperation captured_;
};

}  // namespace fp8lab
