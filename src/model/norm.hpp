// The norms in front of linear layers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/model/declaration.hpp"
#include "src/model/residual.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

class Norm {
 public:
  virtual ~Norm() = default;

  /// The operation that computes rows of output() from `input`, for the tokens from `first` on. The
  /// linear layer that reads them runs it; afterwards input.x is valid.
  virtual ops::Producer forward(const Work& work, const Residual& input,
                                std::int64_t first) const = 0;
  /// dx from dy and the x of the forward pass; adds to the gradients of the norm's vectors.
  virtual void backward(Work& work, const TensorView& dy, const TensorView& x,
                        const TensorView& dx) const = 0;
  /// The same, but adds dx to `gradient`. The contents of dy are unspecified afterwards.
  virtual void backward_add(Work& work, const TensorView& dy, const TensorView& x,
                            const TensorView& gradient) const = 0;
  /// The normalised rows (tokens, C).
  virtual SavedId output() const = 0;
  /// Weight and, where there is one, bias.
  virtual std::vector<ParameterId> vectors() const = 0;
};

/// The model's norm of rows of `width`. `name` names its parameters and, within a layer, the
/// tensors that it saves.
std::unique_ptr<Norm> make_norm(Declaration& declaration, const ModelConfig& model,
                                const std::string& name, std::int64_t width);

/// Declares the weight of an RMSNorm.
ParameterId rms_norm_weight(Declaration& declaration, const std::string& name, std::int64_t width);

}  // namespace fp8lab
