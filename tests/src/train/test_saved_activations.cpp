// [saved_activations] of a recipe: the forward pass reads activations as they are, and the backward
// pass what their codes are worth.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/recording/recording_backend.hpp"
#include "emulation/recording/stand_in.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

constexpr std::int64_t kSequences = 2, kLength = 32, kGroup = 16;
/// A power-of-two scale 2^ceil(log2(amax / 448)) for 16 elements of a token.
const std::string kWords = "\"e4m3fn/1x16/pow2/ceil\"";

/// Nearest value of E4M3, ties to the even code, by a search of all codes.
double nearest_e4m3(double x) {
  double best = 0;
  std::uint32_t best_code = 0;
  for (std::uint32_t code = 0; code < 0x7F; ++code) {
    const double value = numerics::decode(numerics::kE4M3, code);
    const double before = std::abs(std::abs(x) - best), now = std::abs(std::abs(x) - value);
    if (now < before || (now == before && code % 2 == 0 && best_code % 2 == 1)) {
      best = value;
      best_code = code;
    }
  }
  return std::copysign(best, x);
}

/// Rounds each group of 16 columns to E4M3 values times a power of two. All of these are BF16.
void round_groups(const TensorView& view) {
  REQUIRE(view.cols % kGroup == 0);
  for (std::int64_t row = 0; row < view.rows; ++row) {
    std::uint16_t* const values = view.row<std::uint16_t>(row);
    for (std::int64_t first = 0; first < view.cols; first += kGroup) {
      double amax = 0;
      for (std::int64_t i = first; i < first + kGroup; ++i) {
        amax = std::max(amax, std::abs(double{numerics::from_bf16(values[i])}));
      }
      if (amax == 0) continue;
      const double scale = std::exp2(std::ceil(std::log2(amax / 448)));
      for (std::int64_t i = first; i < first + kGroup; ++i) {
        const double x = numerics::from_bf16(values[i]) / scale;
        values[i] = numerics::to_bf16(static_cast<float>(nearest_e4m3(x) * scale));
      }
    }
  }
}

/// Runs a BF16 step whose backward pass finds the named activations rounded, without codes, scales
/// and shared memory: each is rounded where it lies before the first operation of the backward pass
/// that reads it.
class RoundsActivations final : public PassThrough {
 public:
  RoundsActivations(Backend& original, std::set<std::string> names, bool recomputes_product)
      : PassThrough(original), names_(std::move(names)), recomputes_product_(recomputes_product) {}

#define FP8LAB_OPERATION(Name)             \
  void run(const ops::Name& op) override { \
    before(op);                            \
    original().run(op);                    \
  }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  void begin_step() { rounded_.clear(); }
  std::set<std::string> seen;  ///< activations that were rounded

 private:
  template <class Op>
  void before(const Op&) {}
  void before(const ops::GatedForward& op) {
    if (label().phase == Phase::forward) gated_.push_back(op);
  }
  void before(const ops::RmsNormBackwardAdd& op) {
    const bool attention = label().layer.find("attention") != std::string::npos;
    round(attention ? "input" : "middle", op.norm.x);
  }
  void before(const ops::AttentionBackward& op) {
    for (const TensorView* view : {&op.q, &op.k, &op.v}) round("attention.qkv", *view);
    round("attention.out", op.out);
  }
  void before(const ops::GatedBackward& op) { round("mlp.inner", op.gate_up); }
  void before(const ops::Product& op) {
    if (label().gemm != "wgrad" || label().layer == "lm_head") return;
    const std::string module = label().layer.substr(label().layer.find('.', 7) + 1);
    const TensorView& x = op.gemm.b.codes;
    if (module == "attention.qkv") round("attention.norm", x);
    if (module == "attention.o") round("attention.out", x);
    if (module == "mlp.gate_up") round("mlp.norm", x);
    if (module != "mlp.down") return;
    round("mlp.activated", x);
    if (!recomputes_product_) return;
    const auto found = std::find_if(gated_.begin(), gated_.end(),
                                    [&](const auto& gated) { return gated.out.data == x.data; });
    REQUIRE(found != gated_.end());
    round("mlp.inner", found->gate_up);
    original().run(*found);
  }
  void round(const std::string& name, const TensorView& view) {
    if (names_.count(name) == 0 || !rounded_.insert(view.data).second) return;
    seen.insert(name);
    round_groups(view);
  }

  std::set<std::string> names_;
  bool recomputes_product_;
  std::set<const void*> rounded_;
  std::vector<ops::GatedForward> gated_;
};

/// Loss, and gradients (too many to print: compare them in parentheses) in the order of the
/// parameters, of two micro-batches.
struct Passed {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
  std::vector<OperandStatistics> statistics;
};

ModelConfig model_of_three_layers(ModelConfig model = fp8lab::test::small_model()) {
  model.set_layer_count(3);
  return model;
}

Passed pass(Backend& backend, const ModelConfig& model, const Recipe& recipe,
            const MemoryConfig& memory = {}, RoundsActivations* rounds = nullptr) {
  Parameters parameters(backend, model, {}, recipe.activation_dtype);
  parameters.initialize(3);
  Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::running_text, 3, 0);
  Transformer transformer(backend, parameters, model, recipe,
                          BatchShape{kSequences, kLength, {}, memory});
  const StepBlock block(backend);
  const TrainingStep step{backend, parameters, transformer, block, likelihood()};
  StepContext context;
  context.step = 1;
  context.log_statistics = true;
  Passed passed;
  // One micro-batch at a time, so that what was rounded of the first is not taken for the second.
  for (int i = 0; i < 2; ++i) {
    if (rounds != nullptr) rounds->begin_step();
    const std::vector<Batch> batches = {dataset.next(kSequences, kLength)};
    step.accumulate(context, batches, 1e-3);
    const StepResults results = step.results(false, true);
    passed.loss += results.mean_loss();
    passed.statistics = results.statistics;
    for (const Parameter& parameter : parameters.all()) {
      passed.gradients.emplace_back(static_cast<std::size_t>(parameter.gradient().size()));
      download_floats(backend, parameter.gradient(), passed.gradients.back());
    }
  }
  return passed;
}

Recipe recipe_with(const std::string& base, const std::string& saved) {
  return parse_recipe("base = \"" + base + "\"\nname = \"saved\"\n[saved_activations]\n" + saved,
                      "test.toml");
}

}  // namespace

TEST_CASE("gradients are those of the values of saved codes, the loss that of the activations") {
  const ModelConfig model = model_of_three_layers();
  const auto cpu = make_backend("cpu", 1);
  const Passed plain = pass(*cpu, model, load_recipe("bf16"));
  const std::vector<std::string> names = {"input",     "attention.norm", "attention.qkv",
                                          "middle",    "attention.out",  "mlp.norm",
                                          "mlp.inner", "mlp.activated"};
  for (const std::string& name : names) {
    INFO(name);
    RoundsActivations rounds(*cpu, {name}, false);
    const Passed expected = pass(rounds, model, load_recipe("bf16"), {}, &rounds);
    REQUIRE(rounds.seen == std::set{name});
    const Passed found =
        pass(*cpu, model, recipe_with("bf16", "\"" + name + "\" = " + kWords + "\n"));
    CHECK(found.loss == plain.loss);
    CHECK((found.gradients == expected.gradients));
    CHECK((found.gradients != plain.gradients));
  }
  RoundsActivations rounds(*cpu, {names.begin(), names.end()}, false);
  const Passed expected = pass(rounds, model, load_recipe("bf16"), {}, &rounds);
  const Passed found = pass(*cpu, model, recipe_with("bf16", "default = " + kWords + "\n"));
  CHECK(found.loss == plain.loss);
  CHECK((found.gradients == expected.gradients));
}

TEST_CASE("the output of SwiGLU is computed again from the values of saved codes") {
  const ModelConfig model = model_of_three_layers();
  const auto cpu = make_backend("cpu", 1);
  RoundsActivations rounds(*cpu, {"mlp.inner"}, true);
  const Passed expected = pass(rounds, model, load_recipe("bf16"), {}, &rounds);
  const std::string saved = "mlp.inner = " + kWords + "\nmlp.activated = \"recompute\"\n";
  const Passed found = pass(*cpu, model, recipe_with("bf16", saved));
  CHECK((found.gradients == expected.gradients));

  // From an activation that is saved as it is, the bits are those of the first time.
  for (const char* base : {"bf16", "infir2", "deepseek_v3"}) {
    INFO(base);
    const Passed kept = pass(*cpu, model, load_recipe(base));
    const Passed again = pass(*cpu, model, recipe_with(base, "mlp.activated = \"recompute\"\n"));
    CHECK(kept.loss == again.loss);
    CHECK((kept.gradients == again.gradients));
  }
}

TEST_CASE("saved activations leave the loss of quantized recipes and change their gradients") {
  const auto cpu = make_backend("cpu", 1);
  const auto models = {model_of_three_layers(),
                       model_of_three_layers(fp8lab::test::qwen3_model()),
                       model_of_three_layers(fp8lab::test::gpt2_model()),
                       model_of_three_layers(fp8lab::test::olmo2_model()),
                       model_of_three_layers(fp8lab::test::munit_model()),
                       model_of_three_layers(fp8lab::test::fog_model())};
  for (const ModelConfig& model : models) {
    for (const char* base : {"infir2", "te_current", "deepseek_v3"}) {
      INFO(base);
      const std::string saved = "default = " + kWords + "\nmlp.activated = \"recompute\"\n";
      const Passed plain = pass(*cpu, model, load_recipe(base));
      const Passed found = pass(*cpu, model, recipe_with(base, saved));
      CHECK(found.loss == plain.loss);
      CHECK((found.gradients != plain.gradients));
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
        for (std::size_t j = 0; j < plain.gradients[i].size(); ++j) {
          const double was = plain.gradients[i][j];
          difference += (found.gradients[i][j] - was) * (found.gradients[i][j] - was);
          size += was * was;
        }
      }
      CHECK(std::sqrt(difference / size) < 0.2);
    }
  }
}

TEST_CASE("recomputation ends where a residual stream is saved as codes") {
  const ModelConfig model = model_of_three_layers();
  const auto cpu = make_backend("cpu", 1);
  const Parameters parameters(*cpu, model, {}, DType::bf16);
  const auto refused = [&](const std::string& saved, Recompute level) {
    const BatchShape shape{kSequences, kLength, {}, {level, WeightCodes::keep, 0}};
    try {
      const Transformer transformer(*cpu, parameters, model, recipe_with("infir2", saved), shape);
    } catch (const InputError& error) {
      return error.fields().key;
    }
    return std::string();
  };
  const std::string input = "input = " + kWords, middle = "middle = " + kWords;
  CHECK(refused(middle, Recompute::gate_up) == "saved_activations.middle");
  CHECK(refused(middle, Recompute::feed_forward) == "saved_activations.middle");
  CHECK(refused(middle, Recompute::layer).empty());
  CHECK(refused(input, Recompute::gate_up).empty());
  CHECK(refused(input, Recompute::layer) == "saved_activations.input");
  CHECK(refused("mlp.inner = " + kWords, Recompute::layer).empty());
}

TEST_CASE("codes and scales take the place of saved activations") {
  const ModelConfig model = model_of_three_layers();
  const auto cpu = make_backend("cpu", 1);
  const auto bytes_of = [&](const Recipe& recipe, Backend& backend) {
    const std::size_t before = backend.memory_bytes();
    Parameters parameters(backend, model, {}, recipe.activation_dtype);
    const Transformer transformer(backend, parameters, model, recipe,
                                  BatchShape{kSequences, kLength, {}, {}});
    return std::pair(backend.memory_bytes() - before, transformer.buffer_bytes());
  };
  const Recipe saved = recipe_with("bf16", "mlp.inner = \"e4m3fn/1x16/pow2\"\n");
  const auto [plain_bytes, plain_buffers] = bytes_of(load_recipe("bf16"), *cpu);
  const auto [bytes, buffers] = bytes_of(saved, *cpu);
  const std::int64_t tokens = kSequences * kLength, cols = 2 * 96, rows_of_layer = 8;
  const std::size_t in_bf16 = cpu->allocation_bytes(DType::bf16, tokens, cols);
  const std::size_t in_codes =
      cpu->allocation_bytes(DType::u8, tokens, cols) +
      cpu->allocation_bytes(DType::f32, tokens, cols / kGroup) +
      cpu->allocation_bytes(DType::u8, rows_of_layer, sizeof(OperandStatistics));
  CHECK(plain_bytes - plain_buffers - (bytes - buffers) == 3 * (in_bf16 - in_codes));
  CHECK(bytes < plain_bytes);
  // A recording allocates the same.
  RecordingBackend recording(*cpu);
  CHECK(bytes_of(saved, recording) == std::pair(bytes, buffers));
}

TEST_CASE("statistics of saved activations follow those of the linear layers") {
  const ModelConfig model = model_of_three_layers();
  const auto cpu = make_backend("cpu", 1);
  const Passed found = pass(*cpu, model, recipe_with("infir2", "mlp.inner = " + kWords + "\n"));
  const Declaration declaration = declaration_of(model);
  const std::size_t first = declaration.linears().size() * std::size(kSlots);
  const std::vector<LoggedActivation> logged = logged_activations(declaration);
  REQUIRE(found.statistics.size() == first + logged.size());
  for (std::size_t i = 0; i < logged.size(); ++i) {
    INFO(logged[i].layer << " " << logged[i].name);
    const OperandStatistics& statistics = found.statistics[first + i];
    CHECK(statistics.is_absent() == (logged[i].name != "mlp.inner"));
    if (statistics.is_absent()) continue;
    CHECK(statistics.sqnr_db > 25);  // E4M3 of groups: about 32 dB
    CHECK(statistics.sqnr_db < 40);
  }
}
