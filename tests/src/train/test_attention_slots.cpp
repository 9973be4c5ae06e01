// [attention] of a recipe in a model: which operations run, gradients in the space of a transform,
// and the double-precision model, which it does not change.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

constexpr std::int64_t kSequences = 2, kLength = 64;

/// Counts operations by name.
class CountsOperations final : public PassThrough {
 public:
  explicit CountsOperations(Backend& original) : PassThrough(original) {}

#define FP8LAB_OPERATION(Name)             \
  void run(const ops::Name& op) override { \
    ++count[std::string(op.kName)];        \
    original().run(op);                    \
  }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  std::map<std::string, int> count;
};

/// Loss, and gradients (too many to print: compare them in parentheses) in the order of the
/// parameters.
struct Passed {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
  std::vector<std::string> names;
};

Passed pass(Backend& backend, const Recipe& recipe) {
  ModelConfig model = test::small_model();
  model.set_layer_count(2);
  Parameters parameters(backend, model, {}, recipe.activation_dtype);
  parameters.initialize(3);
  Dataset dataset(make_corpus(test::sample_documents()), DataForm::running_text, 3, 0);
  Transformer transformer(backend, parameters, model, recipe, BatchShape{kSequences, kLength, {}});
  const StepBlock block(backend);
  const TrainingStep step{backend, parameters, transformer, block, likelihood()};
  StepContext context;
  context.step = 1;
  const std::vector<Batch> batches = {dataset.next(kSequences, kLength)};
  step.accumulate(context, batches, 1e-3);
  Passed passed;
  passed.loss = step.results(false, false).mean_loss();
  for (const Parameter& parameter : parameters.all()) {
    passed.names.push_back(parameter.name());
    passed.gradients.emplace_back(static_cast<std::size_t>(parameter.gradient().size()));
    download_floats(backend, parameter.gradient(), passed.gradients.back());
  }
  return passed;
}

Recipe recipe_with(const std::string& attention, const std::string& base = "bf16") {
  return parse_recipe("base = \"" + base + "\"\nname = \"slots\"\n[attention]\n" + attention,
                      "test.toml");
}

/// Of the gradients of all that makes queries, keys and values.
double relative_error(const Passed& found, const Passed& expected) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    if (expected.names[i].find("attention.qkv") == std::string::npos) continue;
    for (std::size_t j = 0; j < expected.gradients[i].size(); ++j) {
      error += std::pow(double{found.gradients[i][j]} - double{expected.gradients[i][j]}, 2.0);
      size += std::pow(double{expected.gradients[i][j]}, 2.0);
    }
  }
  return std::sqrt(error / size);
}

const std::string kForward =
    "q = \"e4m3fn/block\"\nk = \"e4m3fn/block\"\nv = \"e4m3fn/block\"\np = \"e4m3fn\"\n";
const std::string kRotated =
    "q = \"e4m3fn/block/hadamard:full\"\n"
    "k = \"e4m3fn/block/hadamard:full\"\nv = \"e4m3fn/block\"\n"
    "p = \"e4m3fn/static:0.00390625\"\n";
const std::string kBackward = "do = \"e5m2/block\"\nds = \"e5m2/block\"\n";

}  // namespace

TEST_CASE("a pass is quantized if the table names one of its operands") {
  const auto cpu = make_backend("cpu", 1);
  const auto counted = [&](const std::string& table) {
    CountsOperations backend(*cpu);
    pass(backend, recipe_with(table));
    const auto of = [&](const char* name) { return backend.count[name]; };
    return std::vector<int>{of("attention_forward"), of("attention_backward"),
                            of("quantized_attention_forward"), of("quantized_attention_backward"),
                            of("rotate_back")};
  };
  CHECK(counted("v = \"bf16\"\n") == std::vector{2, 2, 0, 0, 0});
  CHECK(counted(kForward) == std::vector{0, 2, 2, 0, 0});
  CHECK(counted(kBackward) == std::vector{2, 0, 0, 2, 0});
  CHECK(counted(kForward + kBackward) == std::vector{0, 0, 2, 2, 0});
  CHECK(counted(kRotated + kBackward) == std::vector{0, 0, 2, 2, 4});
}

TEST_CASE("gradients are those of BF16 but for quantization, also behind a transform") {
  const auto cpu = make_backend("cpu", 1);
  const Passed plain = pass(*cpu, recipe_with("v = \"bf16\"\n"));
  CHECK((plain.gradients == pass(*cpu, load_recipe("bf16")).gradients));
  const Passed forward = pass(*cpu, recipe_with(kForward));
  CHECK(forward.loss != plain.loss);
  CHECK(relative_error(forward, plain) < 0.1);
  const Passed direct = pass(*cpu, recipe_with(kForward + kBackward));
  const Passed rotated = pass(*cpu, recipe_with(kRotated + kBackward));
  CHECK(relative_error(direct, plain) < 0.15);
  CHECK(relative_error(rotated, plain) < 0.15);
  CHECK((direct.gradients != rotated.gradients));
}

TEST_CASE("the double-precision model is not quantized") {
  const auto truth = make_backend("truth", 1);
  const Passed plain = pass(*truth, load_recipe("bf16"));
  const Passed quantized = pass(*truth, recipe_with(kRotated + kBackward));
  CHECK(plain.loss == quantized.loss);
  CHECK((plain.gradients == quantized.gradients));
}
