// Finds the operand of a step that made its loss or gradient spike or not finite, while the step is
// executed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "src/model/linear/linear.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// The fault as /events and /samples record it.
struct StepFault {
  std::string message;
  std::string sample_name;    ///< "layers.0.mlp.down/fprop.x"; empty: no sample
  std::vector<float> sample;  ///< elements of the tensor around the named one
};

/// Number of elements that /samples keeps around one of them.
std::vector<float> sample_around(const std::vector<float>& values, std::size_t element);

/// The kind of fault to search for.
enum class FaultKind : std::uint8_t {
  /// The first operation that writes a number that is not finite, and the first operand that
  /// contains one.
  nonfinite,
  /// The operand with the largest ratio of amax to its usual amax; if no ratio is 2 or more, the
  /// operand that saturates most.
  growth,
};

/// Observes the operations of a step that measures every operand (StepContext::log_statistics in
/// each micro-batch). Waits for downloads after operations; use it only for steps that are not
/// timed.
class FaultFinder final : public OperationObserver {
 public:
  /// `usual_amax`: one number for each slot of each linear layer, NaN if unknown. That of saved
  /// activations is unknown: they are judged by saturation.
  FaultFinder(Backend& backend, const Transformer& transformer, FaultKind kind,
              std::vector<double> usual_amax);

  void after(const AnyOperation& op, const Label& label) override;
  /// Call after the step. Returns nothing if no operation or operand stands out.
  std::optional<StepFault> take() const;

 private:
  /// An element of a tensor that an operation writes.
  struct WrittenElement {
    std::string what;  ///< operation and its output
    float value = 0;
    std::int64_t row = 0, col = 0;
  };
  /// An operand and its element that stands out.
  struct BlamedOperand {
    std::string name;  ///< "layers.0.mlp.down/fprop.x"
    Label label;
    OperandStatistics statistics{};
    double growth = 0;              ///< log2(amax / usual amax); 0 if unknown
    std::int64_t row = -1, k = -1;  ///< -1 if not found
    float value = 0;
    bool is_finite_before = false;  ///< true if only the cast made it infinite or NaN
    std::string tile;               ///< tile, quantizer and scale, in words
    std::vector<float> sample;
  };

  void look_at_outputs(const AnyOperation& op, const Label& label);
  void look_at(const ops::MeasureOperand& op, const Label& label);
  /// Sets element, tile and sample.
  void locate(BlamedOperand& blamed, const ops::MeasureOperand& op) const;
  std::string tile_of(const BlamedOperand& blamed, const QuantizedOperand& operand) const;

  Backend& backend_;
  FaultKind kind_;
  std::map<std::string, double> usual_amax_;  ///< by operand: "layers.0.mlp.down/fprop.x"
  std::optional<WrittenElement> written_;
  std::optional<BlamedOperand> blamed_;
};

}  // namespace fp8lab
