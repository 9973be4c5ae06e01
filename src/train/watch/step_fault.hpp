// Which operand of a step is to blame for a loss or a gradient that is not finite, or spikes: the
// step is executed once more and looked at.
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
#include "src/model/linear.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// What /events and /samples say of it.
struct StepFault {
  std::string message;
  std::string sample_name;    ///< "layers.0.mlp.down/fprop.x"; empty: no sample
  std::vector<float> sample;  ///< of the tensor around the element that is named
};

/// The elements of a tensor that /samples keeps around one of them.
std::vector<float> sample_around(const std::vector<float>& values, std::size_t element);

/// What the search is for.
enum class FaultKind : std::uint8_t {
  /// The first operation that writes a number that is not finite, and the first operand that holds
  /// one.
  nonfinite,
  /// The operand whose amax is the largest against its usual one; where none is twice its usual
  /// one, that which saturates most.
  growth,
};

/// Looks at a step with every operand measured (StepContext::log_statistics in each micro-batch),
/// enqueued operation by operation. Downloads what it needs: of no use in a step that counts.
class FaultFinder final : public OperationObserver {
 public:
  /// `usual_amax` has a number for each slot of each linear layer, NaN where it is not known.
  FaultFinder(Backend& backend, const Transformer& transformer, FaultKind kind,
              std::vector<double> usual_amax);

  void after(const AnyOperation& op, const Label& label) override;
  /// After the step. Nothing where no operation or operand stands out.
  std::optional<StepFault> take() const;

 private:
  /// An element of a tensor that an operation writes.
  struct WrittenElement {
    std::string what;  ///< operation and output
    float value = 0;
    std::int64_t row = 0, col = 0;
  };
  /// An operand and the element of it that stands out.
  struct BlamedOperand {
    std::string name;  ///< "layers.0.mlp.down/fprop.x"
    Label label;
    OperandStatistics statistics{};
    double growth = 0;              ///< log2(amax / usual amax); 0: not known
    std::int64_t row = -1, k = -1;  ///< -1: not found
    float value = 0;
    std::string tile;  ///< which, of what quantizer, with what scale
    std::vector<float> sample;
  };

  void look_at_outputs(const AnyOperation& op, const Label& label);
  void look_at(const ops::MeasureOperand& op, const Label& label);
  /// Fills in element, tile and sample.
  void locate(BlamedOperand& blamed, const ops::MeasureOperand& op) const;
  std::string tile_of(const BlamedOperand& blamed, const QuantizedOperand& operand) const;

  Backend& backend_;
  FaultKind kind_;
  std::map<std::string, double> usual_amax_;  ///< by operand: "layers.0.mlp.down/fprop.x"
  std::optional<WrittenElement> written_;
  std::optional<BlamedOperand> blamed_;
};

}  // namespace fp8lab
