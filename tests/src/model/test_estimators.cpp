// Estimators in the backward pass of a model.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/estimator.hpp"
#include "src/config/config.hpp"
#include "src/model/linear/linear.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using fp8lab::test::ModelAtWork;

namespace {

/// E2M1 forward with scales of rows, BF16 backward; the estimator of w.
Recipe with_estimator(const std::string& estimator) {
  return parse_recipe(
      "name = \"t\"\n[slots.default]\nformat = \"bf16\"\n"
      "[slots.fprop.x]\nformat = \"e2m1\"\ntile = \"row\"\n"
      "[slots.fprop.w]\nformat = \"e2m1\"\ntile = \"row\"\nscale_arithmetic = \"dec_div\"\n"
      "estimator = \"" +
          estimator +
          "\"\n[gemm]\naccumulator = \"sm90_bf16\"\n"
          "[keep_high_precision]\nmodules = [\"lm_head\"]\n",
      "t.toml");
}

struct Gradients {
  std::vector<std::string> names;
  std::vector<std::vector<double>> values, weights;
  std::vector<std::int64_t> columns;
};

Gradients gradients(const Recipe& recipe) {
  ModelAtWork work("cpu", fp8lab::test::small_model(), recipe);
  work.loss_and_gradients();
  Gradients result;
  for (const Parameter& parameter : work.parameters.all()) {
    result.names.push_back(parameter.name());
    result.values.push_back(work.gradient(parameter));
    std::vector<float> working(static_cast<std::size_t>(parameter.working().size()));
    download_floats(*work.backend, parameter.working(), working);
    result.weights.emplace_back(working.begin(), working.end());
    result.columns.push_back(parameter.working().cols);
  }
  return result;
}

bool is_linear(const std::string& name) {
  return name.find("layers.") == 0 && name.find("norm") == std::string::npos &&
         name.find("bias") == std::string::npos;
}
bool is_norm_of_block(const std::string& name) {
  return name.find("layers.") == 0 && name.find("norm") != std::string::npos;
}

TEST_CASE("the gradient of a weight is multiplied by the slope at its scaled value") {
  const Gradients plain = gradients(with_estimator("ste"));
  const Gradients dge = gradients(with_estimator("dge:5:3"));
  const numerics::Estimator estimator{numerics::EstimatorKind::dge, 5.0f, 3.0f};
  std::int64_t wrong = 0, changed = 0, seen = 0;
  for (std::size_t p = 0; p < plain.names.size(); ++p) {
    if (!is_linear(plain.names[p])) {
      CHECK(dge.values[p] == plain.values[p]);
      continue;
    }
    const auto columns = static_cast<std::size_t>(plain.columns[p]);
    for (std::size_t row = 0; row * columns < plain.values[p].size(); ++row) {
      float amax = 0.0f;
      for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
        amax = std::max(amax, std::abs(static_cast<float>(plain.weights[p][i])));
      }
      for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
        const float scaled = static_cast<float>(plain.weights[p][i]) / (amax / 6.0f);
        const float expected = static_cast<float>(plain.values[p][i]) *
                               numerics::estimator_factor(estimator, numerics::kE2M1, scaled);
        wrong += static_cast<float>(dge.values[p][i]) != expected;
        changed += dge.values[p][i] != plain.values[p][i];
        ++seen;
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(seen > 10000);
  CHECK(changed > seen / 2);
}

TEST_CASE("a clip mask stops the gradient of what is clipped") {
  // Under such a scale every element is beyond the range.
  const std::string tiny = "scale_source = \"static\"\nstatic_scale = 1e-30\ntile = \"tensor\"\n";
  const auto clipped = [&](const std::string& operand, const std::string& estimator) {
    const std::string other = operand == "x" ? "w" : "x";
    const std::string text = "name = \"t\"\n[slots.default]\nformat = \"bf16\"\n[slots.fprop." +
                             other + "]\nformat = \"e2m1\"\n[slots.fprop." + operand +
                             "]\nformat = \"e2m1\"\n" + tiny + "estimator = \"" + estimator +
                             "\"\n[gemm]\naccumulator = \"sm90_bf16\"\n"
                             "[keep_high_precision]\nmodules = [\"lm_head\"]\n";
    return gradients(parse_recipe(text, "t.toml"));
  };
  const auto zeros = [](const std::vector<double>& values) {
    return std::all_of(values.begin(), values.end(), [](double v) { return v == 0.0; });
  };
  int weights = 0, norms = 0;
  const Gradients of_w = clipped("w", "clip_mask"), straight = clipped("w", "ste");
  for (std::size_t p = 0; p < of_w.names.size(); ++p) {
    INFO(of_w.names[p]);
    if (!is_linear(of_w.names[p])) continue;
    CHECK(zeros(of_w.values[p]));
    weights += !zeros(straight.values[p]);
  }
  CHECK(weights > 0);
  // dx reaches the norm in front of a layer, whose gain gets nothing.
  const Gradients of_x = clipped("x", "clip_mask"), through = clipped("x", "ste");
  for (std::size_t p = 0; p < of_x.names.size(); ++p) {
    INFO(of_x.names[p]);
    if (!is_norm_of_block(of_x.names[p])) continue;
    CHECK(zeros(of_x.values[p]));
    norms += !zeros(through.values[p]);
  }
  CHECK(norms > 0);
}

/// A layer whose x has an estimator, in buffers that it shares with others.
struct MaskedLayer {
  static constexpr std::int64_t kTokens = 8, kIn = 32, kOut = 16;

  MaskedLayer(Backend& backend, Workspace& workspace, std::uint32_t index) {
    const Recipe recipe = parse_recipe(
        "name = \"t\"\n[slots.default]\nformat = \"bf16\"\n[slots.fprop]\n"
        "x = { format = \"e2m1\", tile = \"1x32\", scale_format = \"pow2\", "
        "scale_rounding = \"ocp_floor\", estimator = \"clip_mask\" }\nw.format = \"e2m1\"\n"
        "[gemm]\naccumulator = \"sm90_bf16\"\nschedule = \"promote:32\"\noutput = \"bf16\"\n",
        "t.toml");
    weight.tensors.master = filled(backend, kOut, kIn, 1.0f);
    weight.tensors.gradient = backend.allocate(DType::f32, kOut, kIn);
    y = backend.allocate(DType::bf16, kTokens, kOut);
    dx = backend.allocate(DType::bf16, kTokens, kIn);
    linear = std::make_unique<Linear>(backend, workspace, "masked", index, recipe.linear, weight,
                                      nullptr, kTokens, Purpose::training, OperandLife{});
  }
  /// Whole numbers from -7 to 7 times `size`.
  static TensorView filled(Backend& backend, std::int64_t rows, std::int64_t cols, float size) {
    std::vector<std::uint16_t> values;
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      values.push_back(numerics::to_bf16(size * static_cast<float>(i * 37 % 15 - 7)));
    }
    const TensorView view = backend.allocate(DType::bf16, rows, cols);
    backend.upload(view, values.data());
    return view;
  }
  std::vector<float> input_gradient(Backend& backend) const {
    std::vector<float> values(static_cast<std::size_t>(dx.size()));
    download_floats(backend, dx, values);
    return values;
  }

  Parameter weight;
  TensorView y, dx;
  std::unique_ptr<Linear> linear;
};

TEST_CASE("scales of x wait for the backward pass, whatever other layers do in between") {
  const auto gradient = [](bool interrupted) {
    const std::unique_ptr<Backend> backend = make_backend("cpu", 1);
    Workspace workspace(*backend);
    MaskedLayer first(*backend, workspace, 1), second(*backend, workspace, 2);
    workspace.allocate();
    constexpr std::int64_t kTokens = MaskedLayer::kTokens;
    const TensorView x = MaskedLayer::filled(*backend, kTokens, MaskedLayer::kIn, 1.0f);
    const TensorView large = MaskedLayer::filled(*backend, kTokens, MaskedLayer::kIn, 1024.0f);
    const TensorView dy = MaskedLayer::filled(*backend, kTokens, MaskedLayer::kOut, 1.0f);
    for (const MaskedLayer* layer : {&first, &second}) layer->linear->prepare_weights({});
    first.linear->forward({}, x, first.y);
    if (interrupted) second.linear->forward({}, large, second.y);
    first.linear->backward({}, x, dy, first.dx);
    return first.input_gradient(*backend);
  };
  const std::vector<float> alone = gradient(false);
  CHECK(gradient(true) == alone);
  // The scale of every group is 1, so that 6 and 7 are masked: 4 of 15 elements.
  CHECK(std::count(alone.begin(), alone.end(), 0.0f) > 20);
  CHECK(std::count(alone.begin(), alone.end(), 0.0f) < 200);
}

}  // namespace
