// What the operations of a step write: as hashes, and of one of them as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "src/replay/tensor_hashes.hpp"
#include "src/train/place.hpp"

namespace fp8lab {

/// One output of one operation of a step.
struct TracedOutput {
  std::int64_t operation = 0;  ///< operations and uploads of the step, from 0
  std::int64_t index = 0;      ///< outputs of the operation, from 0
  Place place;
  std::string kind;  ///< kind_of the operation
  std::string name;  ///< OperationOutput::name; of an upload what it brings
  std::string part;  ///< PlaceTracker::part_of
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::uint64_t hash = 0;

  /// The same output of the same operation, whatever its bits.
  bool is_same_as(const TracedOutput& other) const;
};

/// Hashes every output of a step, in the order of the operations.
class TraceObserver final : public OperationObserver {
 public:
  /// `hashes` takes them in the memory of the observed backend; both outlive this.
  TraceObserver(TensorHashes& hashes, PlaceTracker tracker)
      : hashes_(hashes), tracker_(std::move(tracker)) {}

  void after(const AnyOperation& op) override;
  /// Once, after the step.
  std::vector<TracedOutput> take();

 private:
  TensorHashes& hashes_;
  PlaceTracker tracker_;
  std::int64_t operation_ = 0;
  std::vector<TracedOutput> outputs_;
};

/// A matrix on the host.
struct HostCopy {
  TensorView view;  ///< of `bytes`; empty when there is none
  std::vector<std::byte> bytes;
};
HostCopy download(Backend& backend, const TensorView& view);

/// A GEMM with everything that it reads, on the host.
struct CapturedGemm {
  GemmSpec spec;
  QuantizedOperand a, b;  ///< whose codes and scales are those below
  HostCopy a_codes, a_scales, b_codes, b_scales, bias;
  HostCopy before;       ///< what d held, where it is added to
  bool is_alone = true;  ///< d is as the GEMM left it: no transform was undone, nothing added
};

/// One operation of a step as it was executed.
struct CapturedOperation {
  std::vector<HostCopy> outputs;
  std::vector<std::optional<QuantSpec>> quantizers;  ///< of the operand that an output is part of
  std::optional<CapturedGemm> gemm;
};

/// Copies the operation of this number.
class CaptureObserver final : public OperationObserver {
 public:
  CaptureObserver(Backend& backend, std::int64_t operation)
      : backend_(backend), wanted_(operation) {}

  void before(const AnyOperation& op) override;
  void after(const AnyOperation& op) override;
  /// Once, after the step.
  CapturedOperation take() { return std::move(captured_); }

 private:
  Backend& backend_;
  std::int64_t wanted_, operation_ = 0;
  HostCopy before_;
  CapturedOperation captured_;
};

}  // namespace fp8lab
