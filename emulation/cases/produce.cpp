// Cases of operations whose result is quantized when it is stored.
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"

namespace fp8lab {
namespace {

/// A producer: its tensors, of which tensor `output` is quantized, and the
/// operation built from them.
struct Production {
  const char* name;
  bool both;  ///< usually in both orientations
  std::vector<HostTensor> tensors;
  std::size_t output;
  std::function<ops::Producer(const Views&)> of;
};

/// Producers of results with s.rows rows, and their tensors of one type.
class Productions {
 public:
  Productions(CaseDraw& draw, const MatrixShape& s, DType dtype)
      : draw_(draw),
        s_(s),
        dtype_(dtype),
        wild_(draw.one_in(4)),
        epsilon_(draw.one_in(4) ? 0.0f : 1e-6f) {}

  std::vector<Production> all() {
    return {rmsnorm(), layernorm(),      add_rmsnorm(), add_layernorm(),
            gated(),   gated_backward(), activation(),  activation_backward(),
            xielu(),   xielu_backward()};
  }

 private:
  HostTensor input(std::int64_t cols) { return draw_.values(dtype_, s_.rows, cols, wild_); }
  HostTensor output(std::int64_t cols) { return draw_.output(dtype_, s_.rows, cols); }
  HostTensor parameter() { return flat(draw_.ordinary(dtype_, 1, s_.cols)); }
  HostTensor moment() { return flat(draw_.output(DType::f32, 1, s_.rows)); }

  Production rmsnorm() {
    return {"rmsnorm_quantize",
            true,
            {input(s_.cols), parameter(), output(s_.cols), moment()},
            2,
            [epsilon = epsilon_](const Views& t) {
              return ops::RmsNormForward{
                  .x = t[0], .weight = t[1], .epsilon = epsilon, .y = t[2], .rstd = t[3]};
            }};
  }
  Production layernorm() {
    return {"layernorm_quantize",
            false,
            {input(s_.cols), parameter(), parameter(), output(s_.cols), moment(), moment()},
            3,
            [](const Views& t) {
              return ops::LayerNormForward{.x = t[0],
                                           .weight = t[1],
                                           .bias = t[2],
                                           .epsilon = 1e-5f,
                                           .y = t[3],
                                           .mean = t[4],
                                           .rstd = t[5]};
            }};
  }
  Production add_rmsnorm() {
    return {
        "add_rmsnorm_quantize",
        true,
        {input(s_.cols), input(s_.cols), parameter(), output(s_.cols), output(s_.cols), moment()},
        4,
        [epsilon = epsilon_](const Views& t) {
          return ops::AddRmsNormForward{
              .a = t[0],
              .b = t[1],
              .norm = {.x = t[3], .weight = t[2], .epsilon = epsilon, .y = t[4], .rstd = t[5]}};
        }};
  }
  Production add_layernorm() {
    return {"add_layernorm_quantize",
            false,
            {updated(input(s_.cols)), input(s_.cols), parameter(), parameter(), output(s_.cols),
             moment(), moment()},
            4,
            [](const Views& t) {
              return ops::AddLayerNormForward{.a = t[0],
                                              .b = t[1],
                                              .norm = {.x = t[0],
                                                       .weight = t[2],
                                                       .bias = t[3],
                                                       .epsilon = 1e-5f,
                                                       .y = t[4],
                                                       .mean = t[5],
                                                       .rstd = t[6]}};
            }};
  }
  HostTensor number() { return draw_.ordinary(dtype_, 1, 1); }
  Production xielu() {
    return {"xielu_quantize",
            false,
            {input(s_.cols), number(), number(), output(s_.cols)},
            3,
            [](const Views& t) {
              return ops::XieluForward{.x = t[0], .p = t[1], .n = t[2], .out = t[3]};
            }};
  }
  Production xielu_backward() {
    return {"xielu_backward_quantize",
            false,
            {input(s_.cols), number(), number(), input(s_.cols), output(s_.cols),
             draw_.output(DType::f32, s_.rows, 2)},
            4,
            [](const Views& t) {
              return ops::XieluBackward{
                  .x = t[0], .p = t[1], .n = t[2], .dout = t[3], .dx = t[4], .terms = t[5]};
            }};
  }
  Gate gate() { return draw_.one_in(3) ? Gate::gelu_tanh : Gate::silu; }
  Production gated() {
    return {"gated_quantize",
            false,
            {input(2 * s_.cols), output(s_.cols)},
            1,
            [gate = gate()](const Views& t) {
              return ops::GatedForward{.gate = gate, .gate_up = t[0], .out = t[1]};
            }};
  }
  /// A gradient often overwrites the tensor that it is the gradient of, as in training.
  Production gated_backward() {
    if (draw_.one_in(2)) {
      return {"gated_backward_quantize",
              true,
              {updated(input(2 * s_.cols)), input(s_.cols)},
              0,
              [gate = gate()](const Views& t) {
                return ops::GatedBackward{
                    .gate = gate, .gate_up = t[0], .dout = t[1], .dgate_up = t[0]};
              }};
    }
    return {"gated_backward_quantize",
            true,
            {input(2 * s_.cols), input(s_.cols), output(2 * s_.cols)},
            2,
            [gate = gate()](const Views& t) {
              return ops::GatedBackward{
                  .gate = gate, .gate_up = t[0], .dout = t[1], .dgate_up = t[2]};
            }};
  }
  Activation kind() { return draw_.one_in(2) ? Activation::gelu_tanh : Activation::relu2; }
  Production activation() {
    return {"activation_quantize",
            false,
            {input(s_.cols), output(s_.cols)},
            1,
            [kind = kind()](const Views& t) {
              return ops::ActivationForward{.kind = kind, .x = t[0], .out = t[1]};
            }};
  }
  Production activation_backward() {
    if (draw_.one_in(2)) {
      return {"activation_backward_quantize",
              true,
              {updated(input(s_.cols)), input(s_.cols)},
              0,
              [kind = kind()](const Views& t) {
                return ops::ActivationBackward{.kind = kind, .x = t[0], .dout = t[1], .dx = t[0]};
              }};
    }
    return {"activation_backward_quantize",
            true,
            {input(s_.cols), input(s_.cols), output(s_.cols)},
            2,
            [kind = kind()](const Views& t) {
              return ops::ActivationBackward{.kind = kind, .x = t[0], .dout = t[1], .dx = t[2]};
            }};
  }

  CaseDraw& draw_;
  MatrixShape s_;
  DType dtype_;
  bool wild_;
  float epsilon_;  ///< 0: the rstd of a row may be infinite
};

/// Adds a case that quantizes in one orientation or in both.
void produce(CaseDraw& draw, const QuantSpec& spec, const Production& production, bool both) {
  const HostTensor& output = production.tensors[production.output];
  const MatrixShape s{output.rows, output.cols};
  const DType dtype = output.dtype;
  const RandomKey key{7, draw.word(), 3, 0, draw.word() % 100};
  std::vector<HostTensor> tensors = production.tensors;
  const std::size_t first = tensors.size();
  for (const bool transpose : {false, true}) {
    const MatrixShape of_operand = s.transposed_if(transpose);
    tensors.push_back(codes_of(draw, spec, of_operand.rows, of_operand.cols));
    tensors.push_back(scales_of(draw, spec, of_operand.rows, of_operand.cols));
  }
  tensors.push_back(state_of(draw, spec));
  const bool keeps = draw.one_in(2);
  draw.add(fmt::format("{} {}", production.name, label(spec)),
           fmt::format("{} {}{}{}", name_of(dtype), describe(s), both ? " both orientations" : "",
                       keeps ? "" : ", codes alone"),
           std::move(tensors),
           [spec, s, key, both, keeps, first, at = production.output, make = production.of](
               Backend& b, const Views& t) {
             QuantizedOperand straight = operand_at(spec, s.rows, s.cols, t, first);
             QuantizedOperand turned = operand_at(spec, s.cols, s.rows, t, first + 2);
             straight.key = key;
             turned.key = key;
             turned.key.orientation = 1;
             b.run(ops::ProduceQuantize{.producer = make(t),
                                        .state = state_for(spec, t[first + 4]),
                                        .first = straight,
                                        .second = both ? &turned : nullptr,
                                        .keeps_output = keeps});
             if (!keeps) b.fill_zero(t[at]);  // unspecified: clear it for the comparison
           });
}

}  // namespace

template <>
void draw_cases<ops::ProduceQuantize>(CaseDraw& draw) {
  for (const QuantSpec& spec : every_quantizer()) {
    MatrixShape s = draw.shape();
    if (draw.one_in(2)) s.cols = (s.cols + 127) / 128 * 128;
    if (draw.one_in(3)) s = draw.whole_blocks();
    Productions productions(draw, s, draw.activation_type());
    for (const Production& production : productions.all()) {
      produce(draw, spec, production, production.both);
      if (draw.one_in(4)) produce(draw, spec, production, !production.both);
    }
  }
}

}  // namespace fp8lab
