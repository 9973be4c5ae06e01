#include "src/model/feed_forward.hpp"

#include "src/model/initialization.hpp"

namespace fp8lab {
namespace {

using Shape = SavedDeclaration::Shape;

/// A feed-forward block with any activation: Forward computes (tokens, F) from the output of the up
/// projection; Backward replaces that output by its gradient.
template <class Forward, class Backward>
class ActivatedFeedForward final : public FeedForward {
 public:
  ActivatedFeedForward(Declaration& declaration, const ModelConfig& model, const char* up_name,
                       std::vector<OutputGroup> up_outputs)
      : up_(declaration.linear(up_name, model.hidden_size, std::move(up_outputs), model.mlp_bias,
                               model.initializer_range)),
        inner_(declaration.saved("mlp.inner", Shape::activation, width_of(declaration, up_))),
        down_(declaration.recomputed_from(Recompute::feed_forward)
                  .linear("mlp.down", model.intermediate_size, {{"", model.hidden_size}},
                          model.mlp_bias, residual_deviation(model))) {
    activated_ = declaration.saved("mlp.activated", Shape::activation, model.intermediate_size);
    declaration.own_x(down_, activated_);
    declaration.writes_residual(down_);
    d_activated_ = declaration.scratch("mlp.d_activated", model.intermediate_size,
                                       PassPhase::feed_forward_backward);
  }

  void forward(Work& work, const ops::Producer& norm, const TensorView& out) const override {
    work.linear(up_).forward(work.context(), norm, work.saved(inner_));
    work.linear(down_).forward(work.context(), Forward{work.saved(inner_), work.saved(activated_)},
                               out);
  }
  void recompute(Work& work, const ops::Producer& norm) const override {
    work.linear(up_).forward(work.context(), norm, work.saved(inner_));
    if (!work.recomputes(Recompute::feed_forward)) return;
    work.linear(down_).recompute_x(work.context(),
                                   Forward{work.saved(inner_), work.saved(activated_)});
  }
  void backward(Work& work, const TensorView& x, const TensorView& dout,
                const TensorView& dx) const override {
    const TensorView inner = work.saved(inner_), d_activated = work.scratch(d_activated_);
    work.linear(down_).backward(work.context(), work.saved_x(activated_), dout, d_activated);
    work.linear(up_).backward(work.context(), x, Backward{inner, d_activated, inner}, dx);
  }
  LinearId first() const override { return up_; }

 private:
  static std::int64_t width_of(const Declaration& declaration, LinearId linear) {
    return declaration.linears()[static_cast<std::size_t>(linear)].out;
  }

  LinearId up_;
  SavedId inner_;
  LinearId down_;
  SavedId activated_{};
  ScratchId d_activated_{};
};

}  // namespace

std::unique_ptr<FeedForward> make_feed_forward(Declaration& declaration, const ModelConfig& model) {
  const std::int64_t f = model.intermediate_size;
  switch (model.feed_forward) {
    case FeedForwardKind::swiglu:
      return std::make_unique<ActivatedFeedForward<ops::SwigluForward, ops::SwigluBackward>>(
          declaration, model, "mlp.gate_up", std::vector<OutputGroup>{{"gate", f}, {"up", f}});
    case FeedForwardKind::gelu_tanh:
      return std::make_unique<ActivatedFeedForward<ops::GeluForward, ops::GeluBackward>>(
          declaration, model, "mlp.up", std::vector<OutputGroup>{{"", f}});
  }
  return nullptr;
}

}  // namespace fp8lab
