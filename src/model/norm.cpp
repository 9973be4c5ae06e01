#include "src/model/norm.hpp"

namespace fp8lab {
namespace {

using Shape = SavedDeclaration::Shape;

/// `norm`, whose x is that of `input`.
template <class Op>
ops::Producer norm_of(const Residual& input, const Op& norm) {
  if (!input.summands) return norm;
  return ops::AddNorm<Op>{.a = input.summands->a, .b = input.summands->b, .norm = norm};
}

class RmsNorm final : public Norm {
 public:
  RmsNorm(Declaration& declaration, const ModelConfig& model, const std::string& name,
          std::int64_t width)
      : epsilon_(static_cast<float>(model.rms_norm_eps)),
        weight_(rms_norm_weight(declaration, name, width)),
        y_(declaration.saved(name, Shape::activation, width)),
        rstd_(declaration.saved(name + ".rstd", Shape::row, 1)) {}

  ops::Producer forward(const Work& work, const Residual& input,
                        std::int64_t first) const override {
    const std::int64_t tokens = input.x.rows;
    return norm_of(input, ops::RmsNormForward{.x = input.x,
                                              .weight = work.parameter(weight_).working(),
                                              .epsilon = epsilon_,
                                              .y = work.saved(y_, first, tokens),
                                              .rstd = work.saved(rstd_, first, tokens)});
  }
  void backward(Work& work, const TensorView& dy, const TensorView& x,
                const TensorView& dx) const override {
    work.run(work.parameter(weight_).name(), gradient_op(work, dy, x, dx));
  }
  void backward_add(Work& work, const TensorView& dy, const TensorView& x,
                    const TensorView& gradient) const override {
    work.run(work.parameter(weight_).name(),
             ops::RmsNormBackwardAdd{.norm = gradient_op(work, dy, x, dy), .gradient = gradient});
  }
  SavedId output() const override { return y_; }
  std::vector<ParameterId> vectors() const override { return {weight_}; }

 private:
  ops::RmsNormBackward gradient_op(const Work& work, const TensorView& dy, const TensorView& x,
                                   const TensorView& dx) const {
    const Parameter& weight = work.parameter(weight_);
    return {.dy = dy,
            .x = x,
            .weight = weight.working(),
            .rstd = work.saved(rstd_),
            .dx = dx,
            .dweight = weight.gradient()};
  }

  float epsilon_;
  ParameterId weight_;
  SavedId y_, rstd_;
};

class LayerNorm final : public Norm {
 public:
  LayerNorm(Declaration& declaration, const ModelConfig& model, const std::string& name,
            std::int64_t width)
      : epsilon_(static_cast<float>(model.layer_norm_eps)),
        weight_(declaration.parameter({name + ".weight", 1, width, true, false, {1.0, 0.0}, {}})),
        bias_(declaration.parameter({name + ".bias", 1, width, true, false, {}, {}})),
        y_(declaration.saved(name, Shape::activation, width)),
        mean_(declaration.saved(name + ".mean", Shape::row, 1)),
        rstd_(declaration.saved(name + ".rstd", Shape::row, 1)) {}

  ops::Producer forward(const Work& work, const Residual& input,
                        std::int64_t first) const override {
    const std::int64_t tokens = input.x.rows;
    return norm_of(input, ops::LayerNormForward{.x = input.x,
                                                .weight = work.parameter(weight_).working(),
                                                .bias = work.parameter(bias_).working(),
                                                .epsilon = epsilon_,
                                                .y = work.saved(y_, first, tokens),
                                                .mean = work.saved(mean_, first, tokens),
                                                .rstd = work.saved(rstd_, first, tokens)});
  }
  void backward(Work& work, const TensorView& dy, const TensorView& x,
                const TensorView& dx) const override {
    work.run(work.parameter(weight_).name(), gradient_op(work, dy, x, dx));
  }
  void backward_add(Work& work, const TensorView& dy, const TensorView& x,
                    const TensorView& gradient) const override {
    work.run(work.parameter(weight_).name(),
             ops::LayerNormBackwardAdd{.norm = gradient_op(work, dy, x, dy), .gradient = gradient});
  }
  SavedId output() const override { return y_; }
  std::vector<ParameterId> vectors() const override { return {weight_, bias_}; }

 private:
  ops::LayerNormBackward gradient_op(const Work& work, const TensorView& dy, const TensorView& x,
                                     const TensorView& dx) const {
    const Parameter& weight = work.parameter(weight_);
    return {.dy = dy,
            .x = x,
            .weight = weight.working(),
            .mean = work.saved(mean_),
            .rstd = work.saved(rstd_),
            .dx = dx,
            .dweight = weight.gradient(),
            .dbias = work.parameter(bias_).gradient()};
  }

  float epsilon_;
  ParameterId weight_, bias_;
  SavedId y_, mean_, rstd_;
};

}  // namespace

ParameterId rms_norm_weight(Declaration& declaration, const std::string& name, std::int64_t width) {
  return declaration.parameter({name + ".weight", 1, width, true, false, {1.0, 0.0}, {}});
}

std::unique_ptr<Norm> make_norm(Declaration& declaration, const ModelConfig& model,
                                const std::string& name, std::int64_t width) {
  switch (model.norm) {
    case NormKind::rmsnorm: return std::make_unique<RmsNorm>(declaration, model, name, width);
    case NormKind::layernorm: return std::make_unique<LayerNorm>(declaration, model, name, width);
  }
  return nullptr;
}

}  // namespace fp8lab
