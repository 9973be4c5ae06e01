// row_mixing says whether rows are quantized each by itself.
#include <catch2/catch.hpp>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "emulation/spec/row_locality.hpp"
#include "src/backend/factory.hpp"
#include "src/config/config.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/model/linear/operand.hpp"

using namespace fp8lab;

namespace {

constexpr std::int64_t kRows = 9, kCols = 128;

std::vector<float> dequantized(Backend& backend, const QuantSpec& spec, const TensorView& values) {
  const QuantizedOperand operand = quantize_values(backend, values, false, spec, 3, "test");
  std::vector<float> result(static_cast<std::size_t>(values.size()));
  const TensorView out = backend.allocate(DType::f32, values.rows, values.cols);
  backend.run(ops::Dequantize{operand, false, out});
  backend.download(result.data(), out);
  return result;
}

/// Does any row change when it is quantized without the others?
bool mixes_rows(const QuantSpec& spec) {
  const auto backend = make_backend("cpu", 1);
  const TensorView values = backend->allocate(DType::f32, kRows, kCols);
  std::vector<float> numbers(static_cast<std::size_t>(values.size()));
  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto row = static_cast<int>(i / static_cast<std::size_t>(kCols));
    numbers[i] = std::ldexp(normal(generator), 3 * row - 12);  // further than any format reaches
  }
  backend->upload(values, numbers.data());
  const std::vector<float> together = dequantized(*backend, spec, values);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::vector<float> alone = dequantized(*backend, spec, values.row_range(row, 1));
    for (std::size_t i = 0; i < alone.size(); ++i) {
      if (alone[i] != together[static_cast<std::size_t>(row * kCols) + i]) return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("rows without mixing are quantized as if they were alone") {
  for (const std::string words : {"e4m3fn",
                                  "e5m2/stochastic",
                                  "e4m3fn/row",
                                  "e4m3fn/row/pow2",
                                  "e4m3fn/1x32/pow2",
                                  "e4m3fn/static:0.03",
                                  "e2m1/mx32",
                                  "e4m3fn/tensor",
                                  "e4m3fn/tensor/pow2",
                                  "e4m3fn/4x128",
                                  "e4m3fn/128x128/pow2",
                                  "e2m1/1x16/nv_two_level",
                                  "e2m1/1x16/nv_two_level/outer_scale:row",
                                  "e2m1/1x16/nv_two_level/mse/outer_scale:row",
                                  "e4m3fn/row/stochastic",
                                  "e4m3fn/row/via:bf16",
                                  "int8/row/clamp:0.99",
                                  "int8/row/hadamard:full",
                                  "e4m3fn/1x64/hadamard:16:drawn",
                                  "e4m3fn/tensor/hadamard:16",
                                  "logfmt8/1x64",
                                  "logfmt8/2x64",
                                  "e4m3fn/row/expand",
                                  "e4m3fn/3x64/expand",
                                  "bf16",
                                  "fp32"}) {
    const QuantSpec spec = parse_quant_spec(words);
    INFO(words << ": " << row_mixing(spec));
    CHECK(row_mixing(spec).empty() == !mixes_rows(spec));
  }
}

TEST_CASE("operands of what a layer needs more for are told apart by their words") {
  for (const auto& [words, reason] : std::vector<std::pair<std::string, std::string>>{
           {"e4m3fn/delayed", ""},
           {"int8/tensor/smooth:0.5", "from all rows"},
           {"int8/row/smooth:0.5:static", "first rows"},
           {"e4m3fn/row/left:hadamard:16", "along the rows"},
           {"e4m3fn/4x32", "4 rows share"}}) {
    const std::string found = row_mixing(parse_quant_spec(words));
    INFO(words << ": " << found);
    CHECK(found.empty() == reason.empty());
    CHECK(found.find(reason) != std::string::npos);
  }
}

TEST_CASE("a transform mixes rows also where nothing is rounded") {
  QuantSpec spec;
  CHECK(row_mixing(spec).empty());
  spec.transform = *transform_from_name("hadamard:full");
  CHECK(row_mixing(spec).empty());
  spec.transform = *transform_from_name("clamp:0.99");
  CHECK(row_mixing(spec) == "its clamp is at quantiles of all rows");
}

TEST_CASE("recipes with activations local to a token are known") {
  const auto mixes = [](const std::string& recipe) {
    return !row_mixing(load_recipe(recipe).linear.slot(Slot::fprop_x)).empty();
  };
  for (const char* recipe : {"bf16", "fp32", "infir2", "infir2_e5m2", "infir2_1x32", "infir2_row",
                             "mxfp8", "deepseek_v3", "torchao_rowwise", "te_delayed",
                             "nvfp4_row_dequantized_backward", "nvfp4_row_four_over_six"}) {
    INFO(recipe);
    CHECK(!mixes(recipe));
  }
  for (const char* recipe : {"te_current", "e4m3_tensor", "nvfp4", "infir2_tensor", "fp4_occ"}) {
    INFO(recipe);
    CHECK(mixes(recipe));
  }
}
