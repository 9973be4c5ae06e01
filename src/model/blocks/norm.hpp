// The norms of the residual stream and of what is added to it.
#pragma once

#include <cstdint>

#include "src/architecture/parts.hpp"
#include "src/model/blocks/residual.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

class Norm {
 public:
  explicit Norm(NormParts parts) : parts_(parts) {}

  /// The operation that computes rows of output() from `input`, for the tokens from `first` on. The
  /// linear layer that reads them runs it; afterwards input.x is valid.
  ops::Producer forward(const Work& work, const Residual& input, std::int64_t first) const;
  /// y (tokens, C) from x.
  void run(Work& work, const TensorView& x, const TensorView& y) const;
  /// dx from dy and the x of the forward pass; adds to the gradients of the norm's vectors.
  void backward(Work& work, const TensorView& dy, const TensorView& x, const TensorView& dx) const;
  /// The same, but adds dx to `gradient`. The contents of dy are unspecified afterwards.
  void backward_add(Work& work, const TensorView& dy, const TensorView& x,
                    const TensorView& gradient) const;
  /// The normalised rows (tokens, C), of a norm that a linear layer reads.
  SavedId output() const { return *parts_.y; }

 private:
  /// Returns the label of its operations.
  const std::string& name(const Work& work) const { return work.parameter(parts_.weight).name(); }
  ops::RmsNormForward rms_forward(const Work& work, const TensorView& x, const TensorView& y,
                                  std::int64_t first) const;
  ops::LayerNormForward layer_forward(const Work& work, const TensorView& x, const TensorView& y,
                                      std::int64_t first) const;
  ops::RmsNormBackward rms_backward(const Work& work, const TensorView& dy, const TensorView& x,
                                    const TensorView& dx) const;
  ops::LayerNormBackward layer_backward(const Work& work, const TensorView& dy, const TensorView& x,
                                        const TensorView& dx) const;

  NormParts parts_;
};

}  // namespace fp8lab
