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

  /// What makes rows of output() from `input`, those of the tokens from `first` on; run by the
  /// linear layer that reads them. Afterwards input.x is there.
  virtual ops::Producer forward(const Work& work, const Residual& input,
                                std::int64_t first) const = 0;
  /// dx from dy and the x of the forward pass; gradients of the norm's vectors accumulate.
  virtual void backward(Work& work, const TensorView& dy, const TensorView& x,
                        const TensorView& dx) const = 0;
  /// The same, dx added to `gradient`; dy may hold anything afterwards.
  virtual void backward_add(Work& work, const TensorView& dy, const TensorView& x,
                            const TensorView& gradient) const = 0;
  /// (tokens, C), normalised.
  virtual SavedId output() const = 0;
  /// Weight and, where there is one, bias.
  virtual std::vector<ParameterId> vectors() const = 0;
};

/// The model's norm of rows of `width`. `name` is that of its parameters, and within a layer of
/// what it saves.
std::unique_ptr<Norm> make_norm(Declaration& declaration, const ModelConfig& model,
                                const std::string& name, std::int64_t width);

/// Declares the weight of an RMSNorm.
ParameterId rms_norm_weight(Declaration& declaration, const std::string& name, std::int64_t width);

}  // namespace fp8lab
