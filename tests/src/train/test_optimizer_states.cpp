// Whole steps of every optimizer: what is stored how, which moments change the weights, rates by
// name, and what formats lose.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

OptimizerConfig optimizer_of(const std::string& table) {
  return parse_run_config(table + "[[stages]]\nname = \"s\"\nsteps = 3\n", "c.toml", {}).optimizer;
}

using Weights = std::map<std::string, std::vector<float>>;

/// A model in training under some optimizer, on the same data in every run.
class Training {
 public:
  explicit Training(const OptimizerConfig& optimizer, double rate = 1e-2)
      : backend(make_backend("cpu", 2)),
        parameters(*backend, fp8lab::test::small_model(), optimizer, DType::bf16),
        block_(*backend),
        update_(optimizer.update),
        rate_(rate),
        dataset_(make_corpus(fp8lab::test::sample_documents()), DataForm::running_text, 3, 0) {
    parameters.initialize(7);
    parameters.round_weights(kSeed);
    parameters.reset_optimizer();
    transformer_ = std::make_unique<Transformer>(*backend, parameters, fp8lab::test::small_model(),
                                                 load_recipe("bf16"), BatchShape{2, 24, {}});
  }
  explicit Training(const std::string& table, double rate = 1e-2)
      : Training(optimizer_of(table), rate) {}

  UpdateErrors step() {
    const Batch batch = dataset_.next(2, 24);
    const TrainingStep step{*backend, parameters, *transformer_, block_, likelihood()};
    StepContext context;
    context.seed = kSeed;
    context.step = ++number_;
    UpdateErrors errors(*backend);
    step.update(update_, kSeed, step.accumulate(context, std::span(&batch, 1), rate_), &errors);
    return errors;
  }
  Weights weights() const {
    Weights all;
    for (const Parameter& parameter : parameters.all()) {
      all[parameter.name()] = parameters.download(parameter);
    }
    return all;
  }
  Weights after(int steps) {
    for (int i = 0; i < steps; ++i) step();
    return weights();
  }
  std::vector<float> read(const TensorView& view) const {
    std::vector<float> values(static_cast<std::size_t>(view.size()));
    download_floats(*backend, view, values);
    return values;
  }

  static constexpr std::uint64_t kSeed = 5;
  std::unique_ptr<Backend> backend;
  Parameters parameters;

 private:
  StepBlock block_;
  UpdateSpec update_;
  double rate_;
  std::uint32_t number_ = 0;
  Dataset dataset_;
  std::unique_ptr<Transformer> transformer_;
};

/// Of the parameters that differ.
std::vector<std::string> differing(const Weights& a, const Weights& b) {
  std::vector<std::string> names;
  for (const auto& [name, values] : a) {
    if (values != b.at(name)) names.push_back(name);
  }
  return names;
}

constexpr const char* kMoments =
    "first_moment = \"e4m3fn/tensor/pow2\"\nsecond_moment = \"e5m2/tensor/pow2\"\n";

}  // namespace

TEST_CASE("unrounded moments change the weights before they are rounded, rounded ones after") {
  const std::string table = std::string("[optimizer]\n") + kMoments;
  const Weights plain = Training("").after(1);
  Training rounded(table), unrounded(table + "update_moments = \"unrounded\"\n");
  CHECK(differing(unrounded.after(1), plain).empty());
  CHECK_FALSE(differing(rounded.after(1), plain).empty());
  // The next step begins with what was stored, either way.
  CHECK_FALSE(differing(unrounded.after(1), Training("").after(2)).empty());
}

TEST_CASE("BF16 moments, unrounded, are those of FP32 in the first step") {
  const std::string table = "[optimizer]\nfirst_moment = \"bf16\"\nsecond_moment = \"bf16\"\n";
  Training unrounded(table + "update_moments = \"unrounded\"\n"), rounded(table);
  const Weights plain = Training("").after(1);
  CHECK(differing(unrounded.after(1), plain).empty());
  CHECK_FALSE(differing(rounded.after(1), plain).empty());
  const StoredState& moment = unrounded.parameters.all()[0].tensors.first_moment;
  CHECK(moment.codes.dtype == DType::bf16);
}

TEST_CASE("moments are stored as codes, with the numbers of their tiles") {
  Training coat("optimizer = \"coat\"\n"), lm("optimizer = \"fp8_lm_o2\"\n");
  for (std::size_t i = 0; i < coat.parameters.all().size(); ++i) {
    const std::int64_t n = coat.parameters.all()[i].declaration.size();
    const ParameterTensors& of_coat = coat.parameters.all()[i].tensors;
    for (const StoredState* state : {&of_coat.first_moment, &of_coat.second_moment}) {
      CHECK(state->codes.dtype == DType::u8);
      CHECK(state->codes.size() == n);
      CHECK(state->scales.rows == 3);
      CHECK(state->scales.cols == (n + 127) / 128);
    }
    const ParameterTensors& of_lm = lm.parameters.all()[i].tensors;
    CHECK(of_lm.first_moment.codes.size() == n);
    CHECK(of_lm.second_moment.codes.size() == 2 * n);
    CHECK(of_lm.second_moment.scales.size() == 1);
  }
}

TEST_CASE("weights are numbers of their storage, and the working copy is theirs") {
  Training training("[optimizer]\nweights = \"fp16/tensor/pow2\"\n");
  const auto check = [&] {
    for (const Parameter& parameter : training.parameters.all()) {
      INFO(parameter.name());
      const std::vector<float> weights = training.read(parameter.master());
      const std::vector<float> working = training.read(parameter.working());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        // 11 significant bits, as no weight is smaller than 2^-24 of the largest.
        REQUIRE((numerics::float_bits(weights[i]) & 0x1FFFu) == 0u);
        REQUIRE(working[i] == numerics::from_bf16(numerics::to_bf16(weights[i])));
      }
    }
  };
  check();
  const Weights before = training.weights();
  training.after(2);
  check();
  CHECK_FALSE(differing(training.weights(), before).empty());
}

TEST_CASE("gradients are rounded to their storage before norm and update") {
  Training rounded("[optimizer]\ngradients = \"e5m2/tensor/pow2\"\n");
  rounded.step();
  for (const Parameter& parameter : rounded.parameters.all()) {
    for (const float value : rounded.read(parameter.gradient())) {
      REQUIRE((numerics::float_bits(value) & 0x1FFFFFu) == 0u);
    }
  }
  CHECK_FALSE(differing(rounded.weights(), Training("").after(1)).empty());
}

TEST_CASE("groups change the rates of the parameters that they name, the first of them") {
  const Weights before = Training("").weights(), plain = Training("").after(1);
  const auto grouped = [&](const std::string& groups) {
    return Training("[optimizer]\n" + groups).after(1);
  };
  const std::string mlp = "[[optimizer.group]]\nmatch = \"layers.last.mlp\"\n";
  const Weights still = grouped(mlp + "learning_rate = 0.0\n");
  CHECK(differing(still, plain) == std::vector<std::string>{"layers.1.mlp.down.weight",
                                                            "layers.1.mlp.gate_up.weight",
                                                            "layers.1.mlp.norm.weight"});
  for (const std::string& name : differing(still, plain)) CHECK(still.at(name) == before.at(name));
  CHECK(differing(grouped(mlp + "learning_rate = 1.0\n[[optimizer.group]]\nmatch = "
                                "\"layers\"\nlearning_rate = 0.0\n"),
                  still)
            .size() > 2);
  // The first that matches counts, whatever a later one says.
  CHECK(differing(grouped(mlp + "learning_rate = 0.0\n[[optimizer.group]]\nmatch = "
                                "\"layers\"\nlearning_rate = 1.0\n"),
                  still)
            .empty());
  // A decay of its own reaches vectors too.
  const std::string norm = "[[optimizer.group]]\nmatch = \"*.weight\"\nweight_decay = 0.5\n";
  const Weights decayed = grouped(norm);
  const std::vector<std::string> changed = differing(decayed, plain);
  CHECK(changed.size() >= 2);
  for (const std::string& name : changed) CHECK(name.find('.') == name.rfind('.'));
  // Rates by width: of a matrix with four times fewer inputs than the base twice the rate, as
  // stated.
  const Training model("");
  const std::vector<Parameter>& all = model.parameters.all();
  const Parameter& down = *std::find_if(all.begin(), all.end(), [](const Parameter& parameter) {
    return parameter.name() == "layers.1.mlp.down.weight";
  });
  const std::string base = "base_inputs = " + std::to_string(4 * down.declaration.cols) + "\n";
  const Weights wide = grouped(mlp + base);
  const Weights twice = grouped(
      "[[optimizer.group]]\nmatch = \"layers.last.mlp.down\"\n"
      "learning_rate = 2.0\n");
  CHECK(wide.at(down.name()) == twice.at(down.name()));
  CHECK(wide.at("layers.1.mlp.norm.weight") == plain.at("layers.1.mlp.norm.weight"));
  CHECK(wide.at("layers.1.mlp.gate_up.weight") != plain.at("layers.1.mlp.gate_up.weight"));
  CHECK_THROWS_WITH(grouped("[[optimizer.group]]\nmatch = \"layer.0\"\nlearning_rate = 0.5\n"),
                    Catch::Contains("layer.0"));
}

TEST_CASE("sgd without momentum is the gradient times the rate") {
  Training sgd("[optimizer]\nkind = \"sgd\"\nbeta1 = 0.0\nweight_decay = 0.0\nclip_norm = 0.0\n",
               0x1p-6);
  const Weights before = sgd.weights();
  sgd.step();
  for (const Parameter& parameter : sgd.parameters.all()) {
    CHECK(parameter.tensors.second_moment.empty());
    const std::vector<float> gradient = sgd.read(parameter.gradient());
    const std::vector<float> weights = sgd.read(parameter.master());
    const std::vector<float>& old = before.at(parameter.name());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      REQUIRE(weights[i] == old[i] - 0x1p-6f * gradient[i]);
    }
  }
}

TEST_CASE("lion moves every weight with a gradient by the rate, with the moment of before") {
  Training lion("[optimizer]\nkind = \"lion\"\nweight_decay = 0.0\n", 0x1p-10);
  const Weights before = lion.weights();
  lion.step();
  for (const Parameter& parameter : lion.parameters.all()) {
    const std::vector<float> gradient = lion.read(parameter.gradient());
    const std::vector<float> weights = lion.read(parameter.master());
    const std::vector<float>& old = before.at(parameter.name());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const float sign = gradient[i] > 0 ? 1.0f : gradient[i] < 0 ? -1.0f : 0.0f;
      REQUIRE(weights[i] == old[i] - 0x1p-10f * sign);
    }
  }
}

TEST_CASE("madam moves 16-bit logarithms by whole steps, bounds them, and leaves zeros") {
  Training madam("optimizer = \"lns_madam\"\n", 1.0 / 128);
  const Weights before = madam.weights();
  madam.step();
  std::int64_t moved = 0, bounded = 0, all = 0;
  for (const Parameter& parameter : madam.parameters.all()) {
    INFO(parameter.name());
    const std::vector<float>& old = before.at(parameter.name());
    const std::vector<float> weights = madam.read(parameter.master());
    double squares = 0, largest = 0;
    for (const float weight : old) {
      squares += static_cast<double>(weight) * static_cast<double>(weight);
      largest = std::max(largest, std::abs(static_cast<double>(weight)));
    }
    const double bound = 3.0 * std::sqrt(squares / static_cast<double>(old.size()));
    REQUIRE(madam.read(parameter.tensors.weight_bound)[0] == Approx(bound));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto w = static_cast<double>(weights[i]), from = static_cast<double>(old[i]);
      REQUIRE(std::abs(w) <= bound * 1.0005);  // half a step
      if (from == 0.0) {
        REQUIRE(w == 0.0);
        continue;
      }
      // The format has 16 octaves, of which the scale may leave the highest unused.
      if (std::abs(from) < largest * 0x1p-14) continue;
      ++all;
      if (std::abs(w) > bound * 0.9995) {
        ++bounded;
        continue;
      }
      // 2048 steps an octave: 16 of them are the rate.
      const double steps = 128 * std::log2(w / from);
      REQUIRE(std::abs(steps - std::nearbyint(steps)) < 1e-2);
      REQUIRE(std::abs(steps) < 10.01);
      moved += std::abs(steps) > 0.5 ? 1 : 0;
    }
  }
  // g / sqrt(v) is 1 or -1 in the first step wherever there is a gradient.
  CHECK(moved > all / 2);
  CHECK(bounded > 0);
  CHECK(bounded < all / 50);
}

TEST_CASE("coarse logarithms swallow the updates of sgd and AdamW") {
  const auto lost = [](const std::string& kind, const std::string& format, double rate) {
    Training training("[optimizer]\nkind = \"" + kind + "\"\nweight_decay = 0.0\nweights = \"" +
                          format + "/tensor/pow2\"\n",
                      rate);
    training.step();
    return training.step().lost();
  };
  CHECK(lost("sgd", "lns8", 1e-2) > 0.99);
  CHECK(lost("adamw", "lns8", 1e-4) > 0.9);
  CHECK(lost("adamw", "lns16g2048", 1e-4) < 0.1);
  CHECK(lost("madam", "lns16g2048", 1.0 / 128) < 0.5);
}

TEST_CASE("range expansion lowers the error of moments, E4M3 without it loses small ones") {
  const auto errors = [](const std::string& words) {
    Training training("[optimizer]\nupdate_moments = \"unrounded\"\nfirst_moment = \"" + words +
                      "\"\nsecond_moment = \"" + words + "\"\n");
    for (int i = 0; i < 5; ++i) training.step();
    return training.step();
  };
  const UpdateErrors tile = errors("e4m3fn/1x128"), expanded = errors("e4m3fn/1x128/expand");
  CHECK(expanded.first_moment() < tile.first_moment());
  CHECK(expanded.second_moment() < tile.second_moment());
  CHECK(expanded.direction() < 0.1);
  CHECK(tile.direction() > 10 * expanded.direction());
  // Plain states have none.
  Training plain("");
  CHECK_FALSE(plain.step().has_moments());
}

TEST_CASE("stochastic rounding of states follows seed and step") {
  const std::string table = "[optimizer]\nweights = \"fp16/tensor/pow2/stochastic\"\n";
  const Weights first = Training(table).after(2);
  CHECK(differing(first, Training(table).after(2)).empty());
  CHECK_FALSE(
      differing(first, Training("[optimizer]\nweights = \"fp16/tensor/pow2\"\n").after(2)).empty());
}

TEST_CASE(
    "muon updates the parts of fused matrices one by one, and adamw all but weights of layers") {
  const std::string table =
      "[optimizer]\nkind = \"muon\"\nweight_decay = 0.5\nclip_norm = 0.0\nmomentum = 0.75\n"
      "update_scale = \"original\"\n";
  constexpr float kRate = 0x1p-7f;
  Training muon(table, static_cast<double>(kRate));
  const Weights before = muon.weights();
  muon.step();
  Training plain("[optimizer]\nweight_decay = 0.5\nclip_norm = 0.0\n", static_cast<double>(kRate));
  const std::vector<std::string> changed = differing(muon.weights(), plain.after(1));
  std::vector<std::string> expected;
  for (const char* layer : {"layers.0", "layers.1"}) {
    for (const char* matrix : {"attention.o", "attention.qkv", "mlp.down", "mlp.gate_up"}) {
      expected.push_back(std::string(layer) + "." + matrix + ".weight");
    }
  }
  CHECK(changed == expected);

  UpdateSpec spec;
  spec.rule = UpdateRule::muon;
  spec.momentum = 0.75f;
  Backend& backend = *muon.backend;
  const auto upload = [&](const TensorView& view, const std::vector<float>& values) {
    backend.upload(view, values.data());
  };
  std::size_t parts = 0;
  for (const Parameter& parameter : muon.parameters.all()) {
    const bool is_muon = std::count(changed.begin(), changed.end(), parameter.name()) > 0;
    CHECK(parameter.tensors.second_moment.empty() == is_muon);
    if (!is_muon) continue;
    INFO(parameter.name());
    const std::int64_t cols = parameter.declaration.cols;
    std::vector<std::int64_t> heights;
    for (const OutputGroup& group : parameter.declaration.groups) heights.push_back(group.rows);
    if (heights.empty()) heights.push_back(parameter.declaration.rows);
    std::int64_t first = 0;
    for (const std::int64_t rows : heights) {
      ++parts;
      const std::int64_t small = std::min(rows, cols), n = rows * cols;
      const TensorView update = backend.allocate(DType::f32, rows, cols),
                       x = backend.allocate(DType::bf16, rows, cols),
                       gram = backend.allocate(DType::bf16, small, small),
                       squares = backend.allocate(DType::f32, 1, StepScalar::kCount),
                       scalars = backend.allocate(DType::f32, 1, StepScalar::kCount);
      upload(scalars.columns(StepScalar::kClipFactor, 1), {1.0f});
      backend.run(ops::Orthogonalize{spec, scalars, parameter.gradient().row_range(first, rows),
                                     parameter.tensors.first_moment.codes.row_range(first, rows),
                                     update, x, gram, squares});
      const std::vector<float> orthogonal = muon.read(update),
                               now = muon.read(parameter.master().row_range(first, rows));
      const float* const old = before.at(parameter.name()).data() + first * cols;
      const float rate =
          kRate *
          (rows > cols ? std::sqrt(static_cast<float>(rows) / static_cast<float>(cols)) : 1.0f);
      for (std::int64_t i = 0; i < n; ++i) {
        const auto k = static_cast<std::size_t>(i);
        REQUIRE(now[k] == (old[i] * (1.0f - kRate * 0.5f)) - (rate * orthogonal[k]));
      }
      first += rows;
    }
  }
  CHECK(parts == 2 * (3 + 1 + 2 + 1));
}

TEST_CASE("groups choose between muon and adamw, and leave vectors to adamw") {
  const auto trained = [](const std::string& groups) {
    return Training("[optimizer]\nkind = \"muon\"\n" + groups).after(1);
  };
  const auto group = [](const std::string& match, const std::string& kind) {
    return "[[optimizer.group]]\nmatch = \"" + match + "\"\nkind = \"" + kind + "\"\n";
  };
  const Weights muon = trained(""), plain = Training("").after(1);
  const Weights without_mlp = trained(group("layers.*.mlp", "adamw"));
  const std::vector<std::string> mlp = {"layers.0.mlp.down.weight", "layers.0.mlp.gate_up.weight",
                                        "layers.1.mlp.down.weight", "layers.1.mlp.gate_up.weight"};
  CHECK(differing(without_mlp, muon) == mlp);
  for (const std::string& name : mlp) CHECK(without_mlp.at(name) == plain.at(name));
  CHECK(differing(trained(group("embed", "muon")), muon) ==
        std::vector<std::string>{"embed.weight"});
  // Of the matrices and vectors of a group, matrices alone.
  CHECK(differing(trained(group("layers.*.attention", "muon")), muon).empty());
  CHECK_THROWS_WITH(trained(group("layers.*.mlp.norm", "muon")),
                    Catch::Contains("layers.*.mlp.norm") && Catch::Contains("no matrix"));
  CHECK(differing(trained(group("*", "adamw")), plain).empty());
}

TEST_CASE("muon's momentum may be stored in a format of its own") {
  Training whole("[optimizer]\nkind = \"muon\"\n");
  Training codes("[optimizer]\nkind = \"muon\"\nfirst_moment = \"e4m3fn/1x128\"\n");
  const UpdateErrors errors = codes.step();
  CHECK((errors.first_moment() > 0.005 && errors.first_moment() < 0.05));
  CHECK(errors.second_moment() == 0.0);
  CHECK_FALSE(differing(codes.weights(), whole.after(1)).empty());
  Training unrounded(
      "[optimizer]\nkind = \"muon\"\nfirst_moment = \"bf16\"\nupdate_moments = \"unrounded\"\n");
  CHECK(differing(unrounded.after(1), Training("[optimizer]\nkind = \"muon\"\n").after(1)).empty());
}
