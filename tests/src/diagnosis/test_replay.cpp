// The operands of one step under other recipes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>

#include "src/diagnosis/layer_choice.hpp"
#include "src/diagnosis/operand_capture.hpp"
#include "src/diagnosis/product_error.hpp"
#include "src/diagnosis/replay.hpp"
#include "src/model/linear/operand.hpp"
#include "tests/src/diagnosis/diagnosed_run.hpp"

using namespace fp8lab;
using fp8lab::test::DiagnosedRun;

namespace {

/// Gradients of 4 bits in tiles of 32, with `exceptions`.
Recipe int4_gradients(const std::string& exceptions) {
  return parse_recipe(
      "name = \"int4_gradients\"\n[slots.default]\nformat = \"e4m3fn\"\ntile = \"1x32\"\n"
      "[slots.dy]\nformat = \"int4\"\n[gemm]\naccumulator = \"ideal_fp32\"\n"
      "schedule = \"promote:32\"\noutput = \"bf16\"\n[gemm.wgrad]\noutput = \"fp32\"\n" +
          exceptions,
      "int4_gradients.toml");
}

std::vector<RecipeReplay> replayed(DiagnosedRun& run, const std::vector<Recipe>& recipes) {
  const CheckpointedRun at = run.at_checkpoint();
  return replay_step(run.backend(), at, run.next_step(), recipes, {"*"}, nullptr);
}

}  // namespace

TEST_CASE("a run's own recipe gives the statistics that the run logs") {
  // Scales of a history, random bits and signs, a clamp that looks at the other tensor, and codes
  // that are all the run keeps of x.
  const char* recipe = GENERATE("infir2", "te_delayed", "nvfp4", "fp4_occ", "deepseek_v3");
  INFO(recipe);
  DiagnosedRun run(recipe);
  const std::vector<RecipeReplay> replays = replayed(run, {load_recipe(recipe)});
  REQUIRE(replays.size() == 1);
  const std::vector<double> sqnr = run.logged("sqnr_db"), amax = run.logged("amax");
  const std::vector<double> underflow = run.logged("underflow_fraction");
  const std::vector<double> saturation = run.logged("saturation_fraction");
  const std::vector<double> scale = run.logged("scale_max");
  std::size_t at = 0;
  for (const LayerReplay& layer : replays[0].layers) {
    CHECK(layer.without_history.empty());
    for (const Slot slot : kSlots) {
      INFO(layer.layer << " " << slot_name(slot));
      const OperandStatistics& s = layer.operands[slot];
      CHECK(s.sqnr_db == sqnr.at(at));
      CHECK(s.amax == amax.at(at));
      CHECK(s.underflow_fraction == underflow.at(at));
      CHECK(s.saturation_fraction == saturation.at(at));
      CHECK(s.scale_max == scale.at(at));
      ++at;
    }
  }
  CHECK(at == sqnr.size());
}

TEST_CASE("a step under stress is replayed as the run took it") {
  const char* stress =
      GENERATE("[{kind = \"spike\", at_step = 2, factor = 4096}]",
               "[{kind = \"outlier_channels\", at_step = 1, over_steps = 2, gain = 256}]",
               "[{kind = \"aligned_swiglu\", at_step = 2, channels = 3, factor = 8.0},"
               " {kind = \"spike\", at_step = 2, factor = 16}]");
  INFO(stress);
  DiagnosedRun run("infir2", {{"stages.s.stress", stress}});
  const std::vector<RecipeReplay> replays = replayed(run, {load_recipe("infir2")});
  const std::vector<double> sqnr = run.logged("sqnr_db"), amax = run.logged("amax");
  std::size_t at = 0;
  for (const LayerReplay& layer : replays[0].layers) {
    for (const Slot slot : kSlots) {
      INFO(layer.layer << " " << slot_name(slot));
      CHECK(layer.operands[slot].amax == amax.at(at));
      CHECK(layer.operands[slot].sqnr_db == sqnr.at(at));
      ++at;
    }
  }
  // The checkpoint has no weights of a later step.
  CHECK_THROWS_WITH(batch_of_step(run.at_checkpoint(), run.data(), 1),
                    Catch::Contains("under stress"));
}

TEST_CASE("a recipe that stores other activations sees them in its own type") {
  DiagnosedRun run("fp32");
  const std::vector<RecipeReplay> replays =
      replayed(run, {load_recipe("fp32"), load_recipe("bf16"), load_recipe("infir2")});
  const std::vector<double> amax = run.logged("amax");
  for (std::size_t i = 0; i < replays[0].layers.size(); ++i) {
    const LayerReplay &fp32 = replays[0].layers[i], &bf16 = replays[1].layers[i];
    for (const Slot slot : kSlots) {
      INFO(fp32.layer << " " << slot_name(slot));
      CHECK(fp32.operands[slot].amax == amax[6 * i + static_cast<std::size_t>(slot)]);
      CHECK(fp32.operands[slot].sqnr_db == std::numeric_limits<double>::infinity());
      CHECK(bf16.operands[slot].sqnr_db == std::numeric_limits<double>::infinity());
      // Rounded to bf16 before: by at most 2^-8.
      CHECK(bf16.operands[slot].amax != fp32.operands[slot].amax);
      CHECK(bf16.operands[slot].amax == Approx(fp32.operands[slot].amax).epsilon(0x1p-8));
    }
    CHECK(fp32.errors[GemmRole::fprop].whole < 1e-6);
    CHECK(bf16.errors[GemmRole::fprop].whole > 1e-4);
  }
  CHECK(replays[2].layers[0].operands[Slot::fprop_x].sqnr_db < 40.0);

  DiagnosedRun mixed("bf16", {{"stages.s.recipe", "fp32"}});
  const std::vector<RecipeReplay> own = replayed(mixed, {load_recipe("fp32")});
  const std::vector<double> logged = mixed.logged("amax");
  for (std::size_t i = 0; i < own[0].layers.size(); ++i) {
    for (const Slot slot : kSlots) {
      CHECK(own[0].layers[i].operands[slot].amax == logged[6 * i + static_cast<std::size_t>(slot)]);
    }
  }
}

TEST_CASE("static smoothing goes on from the factors of the checkpoint") {
  ScratchDirectory folder;
  const std::filesystem::path file = folder / "smooth.toml";
  std::ofstream(file) << "name = \"smooth\"\n[slots.default]\nformat = \"int8\"\ntile = \"row\"\n"
                         "[slots.fprop.x]\ntransform = \"smooth:0.5:static\"\n"
                         "[slots.fprop.w]\ntransform = \"smooth:0.5:static\"\n"
                         "[gemm]\naccumulator = \"ideal_exact\"\n[gemm.wgrad]\noutput = \"fp32\"\n";
  DiagnosedRun run(file.string());
  const std::vector<RecipeReplay> own = replayed(run, {load_recipe(file.string())});
  const std::vector<double> sqnr = run.logged("sqnr_db");
  for (std::size_t i = 0; i < own[0].layers.size(); ++i) {
    CHECK_FALSE(own[0].layers[i].smoothed_anew);
    CHECK(own[0].layers[i].operands[Slot::fprop_x].sqnr_db == sqnr[6 * i]);
    CHECK(own[0].layers[i].operands[Slot::fprop_w].sqnr_db == sqnr[6 * i + 1]);
  }
  DiagnosedRun plain("bf16");
  const std::vector<RecipeReplay> other = replayed(plain, {load_recipe(file.string())});
  CHECK(other[0].layers[0].smoothed_anew);
}

TEST_CASE("a replayed operand is what quantizing the captured tensor gives") {
  DiagnosedRun run("bf16");
  const CheckpointedRun at = run.at_checkpoint();
  const StepBatch step = run.next_step();
  const Recipe recipe = load_recipe("te_current");
  const std::vector<RecipeReplay> replays =
      replay_step(run.backend(), at, step, {recipe}, {"*"}, nullptr);

  const auto cpu = make_backend("cpu", 2);
  OperandCapture capture(*cpu);
  CheckpointAtWork work(capture, at);
  std::size_t seen = 0;
  capture.watch(
      work.transformer->linears(), chosen_layers(at.config.model, {"*"}),
      work.transformer->shape().tokens(), DType::bf16, [&](const CapturedLinear& captured) {
        const LayerReplay& replay = replays[0].layers[captured.index];
        INFO(replay.layer);
        REQUIRE(captured.linear.name() == replay.layer);
        for (const Slot slot : {Slot::fprop_x, Slot::wgrad_x, Slot::dgrad_dy, Slot::wgrad_dy}) {
          const bool transpose = is_second_orientation(slot);
          const TensorView& source = tensor_of(slot) == Tensor::x ? captured.x : captured.dy;
          const QuantizedOperand operand =
              quantize_values(*cpu, source, transpose, replay.recipe.slot(slot), 0, "captured");
          const TensorView record = cpu->allocate(DType::u8, 1, sizeof(OperandStatistics));
          cpu->run(ops::MeasureOperand{source, transpose, operand, record});
          OperandStatistics s;
          cpu->download(&s, record);
          CHECK(s.sqnr_db == replay.operands[slot].sqnr_db);
          CHECK(s.underflow_fraction == replay.operands[slot].underflow_fraction);
          CHECK(s.hash == replay.operands[slot].hash);
        }
        ++seen;
      });
  work.take(step);
  CHECK(seen == work.transformer->linears().size());
}

TEST_CASE("a history that does not fit is replaced by the tensor's own amax") {
  DiagnosedRun run("infir2");
  Recipe current = load_recipe("te_delayed");
  for (QuantSpec& spec : current.linear.slots) spec.scale_source = ScaleSource::current;
  const std::vector<RecipeReplay> replays = replayed(run, {load_recipe("te_delayed"), current});
  const LayerReplay &delayed = replays[0].layers[0], &own_amax = replays[1].layers[0];
  CHECK(delayed.without_history == std::vector<Slot>{Slot::fprop_x, Slot::fprop_w, Slot::dgrad_dy});
  CHECK(own_amax.without_history.empty());
  for (const Slot slot : kSlots) {
    CHECK(delayed.recipe.slot(slot).scale_source == ScaleSource::current);
    CHECK(delayed.operands[slot].sqnr_db == own_amax.operands[slot].sqnr_db);
  }
  CHECK(replays[0].layers.back().without_history.empty());  // lm_head is not quantized
}

TEST_CASE("a coarse tile planted in one layer comes out worst") {
  DiagnosedRun run("bf16");
  const Recipe fine = int4_gradients("");
  const Recipe planted = int4_gradients(
      "[[override]]\nmatch = \"layers.1.attention.o\"\nslots.dy.tile = \"tensor\"\n");
  const std::vector<RecipeReplay> replays = replayed(run, {fine, planted});
  double others = 0;
  for (std::size_t i = 0; i < replays[0].layers.size(); ++i) {
    const LayerReplay &before = replays[0].layers[i], &after = replays[1].layers[i];
    if (after.layer == "layers.1.attention.o") {
      CHECK(after.errors[GemmRole::dgrad].whole > 1.5 * before.errors[GemmRole::dgrad].whole);
      CHECK(after.errors[GemmRole::wgrad].whole > 1.5 * before.errors[GemmRole::wgrad].whole);
      CHECK(after.errors[GemmRole::fprop].whole == before.errors[GemmRole::fprop].whole);
      continue;
    }
    CHECK(after.errors == before.errors);  // layers are replayed on the same operands
    for (const ProductError& error : after.errors) others = std::max(others, error.whole);
  }
  for (const LayerReplay& layer : replays[1].layers) {
    if (layer.layer != "layers.1.attention.o") continue;
    CHECK(layer.errors[GemmRole::dgrad].whole > others);
  }
}

TEST_CASE("errors of products come from operands, accumulators and outputs") {
  DiagnosedRun run("bf16");
  Recipe exact = load_recipe("fp32"), rounded = exact;
  for (GemmSpec& gemm : exact.linear.gemms) gemm.accumulator = Accumulator::ideal_exact;
  exact.high_precision = exact.linear;
  rounded.linear = exact.linear;
  rounded.linear.gemm(GemmRole::fprop).output = DType::bf16;
  rounded.linear.gemm(GemmRole::dgrad).output = DType::bf16;
  rounded.high_precision = rounded.linear;
  const std::vector<RecipeReplay> replays = replayed(run, {exact, rounded, load_recipe("infir2")});
  for (std::size_t i = 0; i < replays[0].layers.size(); ++i) {
    for (const GemmRole role : kGemmRoles) {
      INFO(replays[0].layers[i].layer << " " << gemm_role_name(role));
      // One rounding of each element to FP32: at most 2^-24 of it, and to bf16: 2^-8.
      CHECK(replays[0].layers[i].errors[role].whole > 0);
      CHECK(replays[0].layers[i].errors[role].whole <= 0x1p-24);
      if (role == GemmRole::wgrad) continue;
      CHECK(replays[1].layers[i].errors[role].whole > 0x1p-11);
      CHECK(replays[1].layers[i].errors[role].whole <= 0x1p-8);
    }
  }
  for (const LayerReplay& layer : replays[0].layers) {
    for (const ProductError& error : layer.errors) {
      CHECK(error.accumulator == 0.0);  // the exact sum itself
      CHECK(error.operands == error.whole);
    }
  }
  // E4M3 keeps 4 significant bits: at most 2^-4 of an operand.
  const LayerReplay& quantized = replays[2].layers[0];
  CHECK(quantized.errors[GemmRole::fprop].whole > 0.005);
  CHECK(quantized.errors[GemmRole::fprop].whole < 0.13);
}

TEST_CASE("a longer chain of the tensor core adds to the part of the sums alone") {
  DiagnosedRun run("bf16");
  Recipe promoted = load_recipe("te_current");
  Recipe fast = promoted;
  for (GemmSpec& gemm : promoted.linear.gemms) {
    gemm.schedule = Schedule::promote;
    gemm.promote_interval = 32;
  }
  for (GemmSpec& gemm : fast.linear.gemms) gemm.schedule = Schedule::fast;
  const std::vector<RecipeReplay> replays = replayed(run, {promoted, fast});
  int grown = 0;
  for (std::size_t i = 0; i < replays[0].layers.size(); ++i) {
    const LayerReplay &few = replays[0].layers[i], &many = replays[1].layers[i];
    if (!many.recipe.slot(Slot::fprop_x).is_cast()) continue;
    for (const GemmRole role : kGemmRoles) {
      INFO(few.layer << " " << gemm_role_name(role));
      const ProductError &a = few.errors[role], &b = many.errors[role];
      CHECK(a.operands == b.operands);
      // Where most tokens are masked, chains are short anyway.
      if (role == GemmRole::wgrad) CHECK(a.accumulator <= b.accumulator);  // in FP32
      grown += a.accumulator < b.accumulator ? 1 : 0;
      CHECK(b.accumulator < b.operands);
      const double together = std::hypot(b.operands, b.accumulator);
      CHECK(b.whole == Approx(together).epsilon(0.05));
    }
  }
  CHECK(grown > 0);
}

TEST_CASE("an estimator is a part of the products that it multiplies") {
  DiagnosedRun run("bf16");
  const Recipe straight = int4_gradients("");
  const Recipe estimated = int4_gradients(
      "[slots.fprop.w]\nestimator = \"dge:5:3\"\n[keep_high_precision]\n"
      "modules = [\"layers.0.mlp.down\"]\n");
  const std::vector<RecipeReplay> replays = replayed(run, {straight, estimated});
  for (std::size_t i = 0; i < replays[0].layers.size(); ++i) {
    const LayerReplay &before = replays[0].layers[i], &after = replays[1].layers[i];
    INFO(after.layer);
    for (const GemmRole role : kGemmRoles) CHECK(before.errors[role].estimator == 0.0);
    if (!after.recipe.slot(Slot::fprop_w).is_cast()) {
      for (const ProductError& error : after.errors) CHECK(error.estimator == 0.0);
      continue;
    }
    CHECK(after.errors[GemmRole::fprop] == before.errors[GemmRole::fprop]);
    CHECK(after.errors[GemmRole::dgrad] == before.errors[GemmRole::dgrad]);
    const ProductError &plain = before.errors[GemmRole::wgrad],
                       &with = after.errors[GemmRole::wgrad];
    CHECK(with.operands == plain.operands);
    CHECK(with.estimator > 0.3);  // factors of 0.2 to 3
    CHECK(with.whole > 2 * plain.whole);
  }
}

TEST_CASE("relative errors of products by hand") {
  const auto error = [](const Factor& a, const Factor& b, const HostMatrix& d,
                        const HostMatrix* exact = nullptr, const HostMatrix* straight = nullptr) {
    return product_error(exact_product(a, b), d, exact, straight);
  };
  const HostMatrix a{2, 3, {1, 2, 3, 4, 5, 6}}, b{2, 3, {1, 0, -1, 2, 1, 0}};
  // A B^T = (-2 4; -2 13), the squares of which sum to 193.
  const HostMatrix d{2, 2, {-2, 4, -2, 12}};
  CHECK(error({a}, {b}, d).whole == Approx(1.0 / std::sqrt(193.0)));
  // A^T B (3, 3) = (9 4 -1; 12 5 -2; 15 6 -3).
  const HostMatrix e{3, 3, {9, 4, -1, 12, 5, -2, 15, 6, -3}};
  CHECK(error({a, true}, {b, true}, e).whole == 0.0);
  const HostMatrix g{2, 2, {-2, 4, -3, 13}};
  const ProductError split = error({a}, {b}, d, &g);
  CHECK(split.whole == Approx(1.0 / std::sqrt(193.0)));
  CHECK(split.operands == Approx(1.0 / std::sqrt(193.0)));
  CHECK(split.estimator == 0.0);
  CHECK(split.accumulator == Approx(std::sqrt(2.0 / 193.0)));
  const HostMatrix h{2, 2, {-2, 4, -3, 15}};
  const ProductError estimated = error({a}, {b}, d, &g, &h);
  CHECK(estimated.whole == split.whole);
  CHECK(estimated.operands == Approx(std::sqrt(5.0 / 193.0)));
  CHECK(estimated.estimator == Approx(std::sqrt(4.0 / 193.0)));
  CHECK(estimated.accumulator == split.accumulator);
  CHECK(std::isnan(error({a}, {b}, d).estimator));
  CHECK(std::isnan(error({a}, {b}, d).operands));
  HostMatrix f = e;
  f.values[2] += 1;
  CHECK(error({a, true}, {b, true}, f).whole == Approx(1.0 / std::sqrt(541.0)));
  f.values[2] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isinf(error({a, true}, {b, true}, f).whole));
  const HostMatrix zero{2, 3, std::vector<float>(6)};
  CHECK(error({a}, {zero}, {2, 2, std::vector<float>(4)}).whole == 0.0);
  CHECK(std::isinf(error({a}, {zero}, d).whole));

  // More rows than a block has, and blocks that end within the matrix.
  HostMatrix tall{1500, 2, {}}, wide{2, 1100, {}};
  for (int i = 0; i < 3000; ++i) tall.values.push_back(static_cast<float>(i % 7 - 3));
  for (int i = 0; i < 2200; ++i) wide.values.push_back(static_cast<float>(i % 5 - 2));
  HostMatrix product{1500, 1100, {}};
  double squares = 0;
  for (std::size_t m = 0; m < 1500; ++m) {
    for (std::size_t n = 0; n < 1100; ++n) {
      const float value =
          tall.values[2 * m] * wide.values[n] + tall.values[2 * m + 1] * wide.values[1100 + n];
      product.values.push_back(value);
      squares += double{value} * double{value};
    }
  }
  CHECK(error({tall}, {wide, true}, product).whole == 0.0);
  product.values[1400 * 1100 + 1090] += 3.0f;
  CHECK(error({tall}, {wide, true}, product).whole == Approx(3.0 / std::sqrt(squares)));
}

TEST_CASE("lm_head is replayed where it is asked for, and other layers alone give the same") {
  DiagnosedRun run("infir2");
  const std::vector<Recipe> recipes = {load_recipe("infir2"), load_recipe("te_current")};
  const CheckpointedRun at = run.at_checkpoint();
  const auto of_layers = [&](const std::vector<std::string>& layers) {
    std::vector<std::string> told;
    const auto replays = replay_step(run.backend(), at, run.next_step(), recipes, layers,
                                     [&](const std::string& layer) { told.push_back(layer); });
    for (const RecipeReplay& replay : replays) {
      REQUIRE(replay.layers.size() == told.size());
      for (std::size_t i = 0; i < told.size(); ++i) {
        CHECK(replay.layers[i].layer == told[told.size() - 1 - i]);  // backward
      }
    }
    return replays;
  };
  const std::vector<RecipeReplay> all = of_layers({"*"}), usual = of_layers({});
  const std::vector<RecipeReplay> some = of_layers({"lm_head", "layers.last.mlp.down"});
  REQUIRE(all[0].layers.size() == 9);
  REQUIRE(usual[0].layers.size() == 8);
  REQUIRE(some[0].layers.size() == 2);
  CHECK(all[0].layers[8].layer == "lm_head");
  for (std::size_t r = 0; r < recipes.size(); ++r) {
    const auto check_same = [&](const LayerReplay& a, const LayerReplay& b) {
      INFO(a.layer);
      CHECK(a.layer == b.layer);
      CHECK(a.errors == b.errors);
      for (const Slot slot : kSlots) CHECK(a.operands[slot].hash == b.operands[slot].hash);
    };
    for (std::size_t i = 0; i < 8; ++i) check_same(usual[r].layers[i], all[r].layers[i]);
    check_same(some[r].layers[0], all[r].layers[7]);
    check_same(some[r].layers[1], all[r].layers[8]);
  }
  CHECK_THROWS_WITH(of_layers({"layers.2.mlp.down"}),
                    Catch::Contains("layer 'layers.2.mlp.down': the model has no such"));
  CHECK_THROWS_WITH(of_layers({"lm_haed"}), Catch::Contains("did you mean 'lm_head'"));
}

TEST_CASE("no gradient of a weight is computed to capture operands, and dx of every layer is") {
  DiagnosedRun run("infir2");
  const CheckpointedRun at = run.at_checkpoint();
  const auto cpu = make_backend("cpu", 2);
  OperandCapture capture(*cpu);
  CheckpointAtWork work(capture, at);
  std::vector<std::size_t> seen;
  capture.watch(work.transformer->linears(), chosen_layers(at.config.model, {}),
                work.transformer->shape().tokens(), DType::bf16,
                [&](const CapturedLinear& captured) { seen.push_back(captured.index); });
  work.take(run.next_step());
  CHECK(seen == std::vector<std::size_t>{7, 6, 5, 4, 3, 2, 1, 0});
  for (const auto& linear : work.transformer->linears()) {
    if (linear->name() == "lm_head") continue;  // the embedding adds to the same gradient
    HostMatrix gradient;
    copy_to_host(*cpu, linear->weight_gradient(), gradient);
    CHECK(std::count(gradient.values.begin(), gradient.values.end(), 0.0f) ==
          static_cast<std::ptrdiff_t>(gradient.values.size()));
  }
}

TEST_CASE("products in double precision are computed once for the same tensors") {
  const HostMatrix a{2, 3, {1, 2, 3, 4, 5, 6}}, b{2, 3, {1, 0, -1, 2, 1, 0}};
  const HostMatrix other{2, 3, {1, 2, 3, 4, 5, 7}};
  ExactProducts products;
  const std::vector<double>& first = products.of({a}, {b});
  CHECK(first == std::vector<double>{-2, 4, -2, 13});
  CHECK(&products.of({a}, {b}) == &first);
  CHECK(products.of({b, true}, {a, true}) == std::vector<double>{9, 12, 15, 4, 5, 6, -1, -2, -3});
  CHECK(products.of({b}, {a}) == std::vector<double>{-2, -2, 4, 13});
  CHECK(products.of({other}, {b}) == std::vector<double>{-2, 4, -3, 13});
  CHECK(&products.of({a}, {b}) == &first);  // where it was
  CHECK(first[3] == 13);
}

TEST_CASE("a matrix on the host takes another tensor") {
  const auto cpu = make_backend("cpu", 1);
  const TensorView large = cpu->allocate(DType::f32, 2, 3),
                   small = cpu->allocate(DType::bf16, 1, 2);
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::uint16_t> codes = {0x3F80, 0xC040};  // 1, -3
  cpu->upload(large, values.data());
  cpu->upload(small, codes.data());
  HostMatrix matrix;
  copy_to_host(*cpu, large, matrix);
  CHECK((matrix.rows == 2 && matrix.cols == 3 && matrix.values == values));
  copy_to_host(*cpu, small, matrix);
  CHECK((matrix.rows == 1 && matrix.cols == 2 && matrix.values == std::vector<float>{1, -3}));
}

TEST_CASE("what cannot be replayed is refused") {
  DiagnosedRun run("bf16");
  const auto truth = make_backend("truth", 1);
  CHECK_THROWS_WITH(replay_step(*truth, run.at_checkpoint(), run.next_step(),
                                {load_recipe("infir2")}, {}, nullptr),
                    Catch::Contains("no operand statistics"));
  Recipe odd = load_recipe("infir2");
  for (QuantSpec& spec : odd.linear.slots) spec.transform = *transform_from_name("hadamard:48");
  CHECK_THROWS_WITH(
      replay_step(run.backend(), run.at_checkpoint(), run.next_step(), {odd}, {}, nullptr),
      Catch::Contains("recipe infir2"));
  RunConfig shorter = run.config();
  shorter.stages[0].steps = 1;
  CHECK_THROWS_WITH(open_checkpointed_run(shorter, run.at_checkpoint().checkpoint),
                    Catch::Contains("stage_step"));
}
