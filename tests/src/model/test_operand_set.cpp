// Operands that no linear layer has: what a set makes of its rows, whatever their number and names.
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/model/linear/operand.hpp"
#include "src/model/linear/operand_set.hpp"

using namespace fp8lab;

namespace {

constexpr std::int64_t kRows = 24, kWidth = 64;

OperandDeclaration declared(const std::string& name, std::uint32_t tensor, const std::string& spec,
                            bool transpose = false) {
  OperandDeclaration row;
  row.name = name;
  row.tensor_name = name.substr(name.find('.') + 1);
  row.tensor = tensor;
  row.gemm = 7;
  row.transpose = transpose;
  row.spec = parse_quant_spec(spec);
  row.source = TensorView::without_memory(DType::f32, kRows, kWidth);
  return row;
}

TensorView uploaded(Backend& backend, float factor) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
    values.push_back(factor * static_cast<float>(i % 37 - 18) / static_cast<float>(1 + i % 5));
  }
  const TensorView view = backend.allocate(DType::f32, kRows, kWidth);
  backend.upload(view, values.data());
  return view;
}

std::vector<std::uint8_t> codes_of(Backend& backend, const QuantizedOperand& operand) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(operand.codes.size()));
  backend.download(codes.data(), operand.codes);
  return codes;
}

}  // namespace

TEST_CASE("rows of an attention are made as single tensors are, in memory and in buffers") {
  const auto backend = make_backend("cpu", 1);
  Workspace workspace(*backend);
  const std::string words = "e4m3fn/1x32/pow2/stochastic";
  std::vector<OperandDeclaration> rows = {declared("scores.q", 0, words),
                                          declared("values.q", 0, words, true),
                                          declared("scores.k", 3, words)};
  rows[2].memory = {PassPhase::attention, "operand.k", PassPhase::attention};
  OperandSet set(*backend, workspace, "layers.0.attention", rows);
  workspace.allocate();
  const TensorView q = uploaded(*backend, 1.0f), k = uploaded(*backend, -2.5f);
  StepContext context;
  context.seed = 11;
  context.log_statistics = true;
  const std::vector<OperandId> ids = set.ids();
  REQUIRE(ids.size() == 3);
  CHECK(set.is_kept(ids[0]));
  CHECK_FALSE(set.is_kept(ids[2]));
  set.quantize_both(context, ids[0], q);
  set.quantize(context, ids[2], k);
  CHECK(set.statistics().rows == 3);
  // The random key of tensor 0 is that of a tensor alone.
  const QuantSpec& spec = rows[0].spec;
  for (const bool transpose : {false, true}) {
    const QuantizedOperand want = quantize_values(*backend, q, transpose, spec, 11, "q");
    CHECK(codes_of(*backend, set.operand(ids[transpose ? 1 : 0])) == codes_of(*backend, want));
  }
  const QuantizedOperand& made = set.operand(ids[2]);
  CHECK(codes_of(*backend, made) !=
        codes_of(*backend, quantize_values(*backend, k, false, spec, 11, "k")));
  CHECK(tensor_number(made.key) == 3);
  CHECK(made.key.rotation == 7);
  set.make(context, ids[0], q.row_range(0, 5));
  CHECK(set.operand(ids[0]).rows == 5);
}

TEST_CASE("the scale of a row is that of its history, and an evaluation leaves it") {
  const auto backend = make_backend("cpu", 1);
  Workspace workspace(*backend);
  OperandDeclaration row = declared("scores.p", 1, "e4m3fn/tensor/fp32/delayed");
  OperandDeclaration unmade = declared("values.p", 1, "e4m3fn/tensor/fp32/delayed", true);
  unmade.is_made = false;
  OperandSet set(*backend, workspace, "attention", {row, unmade});
  workspace.allocate();
  const OperandId p = set.ids()[0], second = set.ids()[1];
  CHECK(set.history_owner(second) == p);
  CHECK(set.delayed_state(second).empty());
  CHECK(set.is_without_history(p));
  CHECK_FALSE(set.is_without_history(second));
  const auto scale = [&] {
    float value = 0;
    set.quantize(StepContext{}, p, uploaded(*backend, 4.0f));
    backend->download(&value, set.operand(p).scales);
    return value;
  };
  CHECK(scale() == 1.0f);
  set.discard_amaxes();
  set.update_delayed_scales();
  CHECK(scale() == 1.0f);
  set.update_delayed_scales();
  set.end_step();
  CHECK(set.history_steps(p) == 1);
  CHECK_FALSE(set.is_without_history(p));
  CHECK(scale() == 72.0f / 448.0f);
}

TEST_CASE("a refusal names the module and the operand") {
  const auto backend = make_backend("cpu", 1);
  Workspace workspace(*backend);
  OperandDeclaration row = declared("scores.q", 0, "e4m3fn/tensor/fp32/delayed");
  row.spec.tile = parse_quant_spec("e4m3fn/1x32").tile;  // which no delayed scale has
  CHECK_THROWS_WITH(OperandSet(*backend, workspace, "layers.0.attention", {row}),
                    Catch::Contains("layers.0.attention: scores.q: "));
}
