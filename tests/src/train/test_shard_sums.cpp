// The order of a step's sums: a tree over shards, the same on every number of ranks.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/step/execution.hpp"
#include "src/train/step/ranks.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;

namespace {

RunConfig configured(const std::string& recipe, const std::vector<Assignment>& settings) {
  return parse_run_config(
      "name = \"r\"\nrecipe = \"" + recipe +
          "\"\nseed = 5\n"
          "[model]\nvocab_size = 272\nhidden_size = 128\nintermediate_size = 256\n"
          "num_hidden_layers = 2\nnum_attention_heads = 2\nnum_key_value_heads = 1\n"
          "max_position_embeddings = 32\n"
          "[logging]\nstatistics_every_steps = 2\n"
          "[[stages]]\nname = \"pretrain\"\nsteps = 4\nbatch_sequences = 8\n"
          "micro_batch_sequences = 1\nsequence_length = 32\n"
          "learning_rate = {peak = 2e-3, warmup_steps = 1}\n",
      "run.toml", settings);
}

/// What each step of a run left: loss, gradient norm and hash of the weights.
struct Trace {
  std::vector<double> losses, norms;
  std::vector<std::uint64_t> hashes;
  bool operator==(const Trace&) const = default;
};

Trace executed(const RunConfig& config, Ranks& ranks) {
  const auto backend = make_backend("cpu", 1);
  Execution execution(config, *backend, {}, {}, false, ranks);
  Trace trace;
  while (!execution.is_complete()) {
    execution.begin_stage();
    while (!execution.is_stage_done()) {
      const StepTaken taken = execution.step();
      trace.losses.push_back(taken.record.loss);
      trace.norms.push_back(taken.record.grad_norm);
      trace.hashes.push_back(taken.record.weight_hash);
      const bool measures = ranks.rank() == 0 && taken.record.step % 2 == 1;
      CHECK(taken.statistics.empty() != measures);
    }
    execution.end_stage();
  }
  return trace;
}

/// The traces of all ranks of a run.
std::vector<Trace> executed_on(const RunConfig& config, std::int64_t size) {
  ThreadRanks ranks(size);
  std::vector<Trace> traces(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { traces[static_cast<std::size_t>(rank)] = executed(config, ranks[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return traces;
}

void check_ranks(const std::string& recipe, std::size_t steps,
                 std::initializer_list<std::int64_t> sizes) {
  INFO(recipe);
  const Assignment count{"stages.*.steps", std::to_string(steps)};
  const RunConfig config = configured(recipe, {count, {"parallel.shards", "8"}});
  const Trace alone = executed(config, one_rank());
  REQUIRE(alone.hashes.size() == steps);
  for (const std::int64_t size : sizes) {
    for (const Trace& trace : executed_on(config, size)) CHECK(trace == alone);
  }
  CHECK(executed(configured(recipe, {count}), one_rank()).hashes != alone.hashes);
}

std::vector<float> gradients_of(Backend& backend, const Parameters& parameters) {
  std::vector<float> all;
  for (const Parameter& parameter : parameters.all()) {
    std::vector<float> values(static_cast<std::size_t>(parameter.gradient().size()));
    download_floats(backend, parameter.gradient(), values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<float> sum_of(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum;
  for (std::size_t i = 0; i < a.size(); ++i) sum.push_back(a[i] + b[i]);
  return sum;
}

}  // namespace

TEST_CASE("eight shards have one result on 1, 2, 4 and 8 ranks") {
  const char* name =
      GENERATE("te_current", "te_delayed", "infir2", "nvfp4", "smooth_swiglu", "fp4_occ");
  check_ranks(name, 4, {2, 4, 8});
}

TEST_CASE("eight shards have one result on 1, 2 and 4 ranks if all codes are drawn") {
  const ScratchDirectory folder;
  const std::filesystem::path recipe = folder.path() / "drawn.toml";
  std::ofstream(recipe)
      << "base = \"infir2\"\nname = \"drawn\"\nsummary = \"all codes are drawn\"\n"
         "[slots.default]\nrounding = \"stochastic\"\n";
  check_ranks(recipe.string(), 3, {2, 4});
}

TEST_CASE("eight shards have one result on 1, 2 and 4 ranks, 200 steps", "[.long]") {
  const char* name =
      GENERATE("te_current", "te_delayed", "infir2", "nvfp4", "smooth_swiglu", "fp4_occ");
  check_ranks(name, 200, {2, 4});
}

TEST_CASE("shards of several micro-batches have one result on 1 and 2 ranks") {
  const RunConfig config = configured("te_delayed", {{"parallel.shards", "2"}});
  CHECK(config.stages[0].micro_batch_sequences == 1);
  const Trace alone = executed(config, one_rank());
  for (const Trace& trace : executed_on(config, 2)) CHECK(trace == alone);
}

TEST_CASE("a micro-batch of several shards means the same run as one of one shard") {
  const std::vector<Assignment> shards = {{"parallel.shards", "8"}};
  const std::string hash = configured("infir2", shards).hash;
  for (const char* micro : {"1", "2", "4", "8"}) {
    std::vector<Assignment> settings = shards;
    settings.push_back({"stages.*.micro_batch_sequences", micro});
    const RunConfig config = configured("infir2", settings);
    CHECK(config.hash == hash);
    CHECK(config.stages[0].micro_batch_sequences == 1);
  }
  CHECK(configured("infir2", {{"parallel.shards", "1"}}).hash == configured("infir2", {}).hash);
  CHECK(configured("infir2", {}).hash != hash);
}

TEST_CASE("the sum over shards is the tree that the specification draws") {
  const std::int64_t shards = GENERATE(1, 2, 4, 8);
  const RunConfig config = configured("infir2", {{"parallel.shards", std::to_string(shards)}});
  const StageConfig& stage = config.stages[0];
  const Recipe recipe = load_recipe(config.recipe);
  const DataSources data = open_sources(stage.data, config.model.vocab_size, "stage");
  Mixture stream = training_stream(data, config, stage);
  std::vector<Batch> batches;
  for (int i = 0; i < 8; ++i) batches.push_back(stream.next(1, stage.sequence_length));

  const auto backend = make_backend("cpu", 1);
  RunMemory memory(*backend, config, recipe);
  memory.parameters.initialize(5);
  const auto transformer = make_transformer(*backend, memory.parameters, config, stage, recipe);
  StepContext context;
  context.seed = 5;
  const TrainingStep step{*backend,    memory.parameters, *transformer,
                          memory.step, likelihood(),      &memory.shards};
  const std::int64_t tokens = step.accumulate(context, batches, 1e-3);
  const std::vector<float> gradients = gradients_of(*backend, memory.parameters);
  const double loss = step.results().scalar(StepScalar::kLossSum);

  // Each leaf from a pass over its own micro-batches, without ShardSums.
  const std::size_t length = 8 / static_cast<std::size_t>(shards);
  std::vector<std::vector<float>> nodes;
  std::vector<float> losses;
  for (std::size_t shard = 0; shard < static_cast<std::size_t>(shards); ++shard) {
    begin_step(*backend, memory.step.scalars, 1e-3, tokens);
    memory.parameters.zero_gradients();
    for (std::size_t i = 0; i < length; ++i) {
      context.micro_batch = static_cast<std::uint32_t>(shard * length + i);
      context.adds_to_gradients = i > 0;
      transformer->load(batches[context.micro_batch]);
      transformer->forward(context);
      likelihood().run(*transformer, memory.step.scalars, Leaves::gradient);
      transformer->backward(context);
    }
    nodes.push_back(gradients_of(*backend, memory.parameters));
    losses.push_back(
        static_cast<float>(read_scalar(*backend, memory.step.scalars, StepScalar::kLossSum)));
  }
  while (nodes.size() > 1) {
    for (std::size_t i = 0; i < nodes.size() / 2; ++i) {
      nodes[i] = sum_of(nodes[2 * i], nodes[2 * i + 1]);
      losses[i] = losses[2 * i] + losses[2 * i + 1];
    }
    nodes.resize(nodes.size() / 2);
    losses.resize(nodes.size());
  }
  CHECK(std::memcmp(gradients.data(), nodes[0].data(), gradients.size() * sizeof(float)) == 0);
  CHECK(loss == static_cast<double>(losses[0]));
  CHECK(memory.parameters.gradient_sets().size() == 1 + static_cast<std::size_t>(shards > 1) +
                                                        static_cast<std::size_t>(shards > 2) +
                                                        static_cast<std::size_t>(shards > 4));
}

TEST_CASE("batches that cannot be divided into the shards are refused") {
  const auto refusal = [](const std::vector<Assignment>& settings) -> std::string {
    try {
      configured("bf16", settings);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  CHECK(refusal({{"parallel.shards", "3"}}).find("a power of two") != std::string::npos);
  CHECK(refusal({{"parallel.shards", "16"}}).find("does not divide batch_sequences = 8") !=
        std::string::npos);
  CHECK(refusal({{"parallel.shards", "4"},
                 {"stages.*.batch_sequences", "24"},
                 {"stages.*.micro_batch_sequences", "4"}})
            .find("of micro_batch_sequences = 4, or of fewer sequences") != std::string::npos);
  CHECK(refusal({{"parallel.shards", "2"}, {"optimizer.gradients", "bf16"}})
            .find("whose gradients are added") != std::string::npos);
}

TEST_CASE("a rank that fails releases those that wait for it") {
  ThreadRanks ranks(2);
  std::string message;
  std::thread waiting([&] {
    std::vector<float> values = {1.0f};
    try {
      ranks[1].maximum(values);
    } catch (const Error& error) {
      message = error.what();
    }
  });
  ranks.abandon();
  waiting.join();
  CHECK(message == "another rank has failed");
  CHECK_THROWS_AS(ThreadRanks(3), Error);
  CHECK_THROWS_AS(ThreadRanks(0), Error);
}

TEST_CASE("the maximum over ranks keeps infinity and NaN") {
  ThreadRanks ranks(2);
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a = {1.0f, inf, 2.0f, 0.0f}, b = {3.0f, 1.0f, nan, 0.0f};
  std::thread other([&] { ranks[1].maximum(b); });
  ranks[0].maximum(a);
  other.join();
  for (const std::vector<float>& values : {a, b}) {
    CHECK(values[0] == 3.0f);
    CHECK(values[1] == inf);
    CHECK(values[2] != values[2]);
    CHECK(values[3] == 0.0f);
  }
}
