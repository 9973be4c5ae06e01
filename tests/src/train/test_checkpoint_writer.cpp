// Checkpoints that are written while the run goes on.
#include <dlfcn.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "emulation/base/machine.hpp"
#include "src/config/reading/overlay.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/background_file.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "src/io/tensors/safetensors.hpp"
#include "src/train/checkpoint/checkpoint_writer.hpp"
#include "src/train/step/execution.hpp"
#include "src/train/trainer.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

std::atomic<bool> disk_is_slow = false;
std::atomic<int> syncing = 0, most_syncing = 0;

}  // namespace

/// Stands in front of libc's.
extern "C" int fsync(int file) {
  using Sync = int (*)(int);
  static const auto next = reinterpret_cast<Sync>(::dlsym(RTLD_NEXT, "fsync"));
  const int now = ++syncing;
  most_syncing = std::max(most_syncing.load(), now);
  if (disk_is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(250));
  const int result = next(file);
  --syncing;
  return result;
}

namespace {

/// Weights and moments of 33 MB: more than the least memory that a checkpoint is copied through.
RunConfig configured() {
  return parse_run_config(
      "name = \"checkpoints\"\nrecipe = \"te_delayed\"\nseed = 3\n"
      "[model]\nvocab_size = 40000\nhidden_size = 64\nintermediate_size = 64\n"
      "num_hidden_layers = 1\nnum_attention_heads = 2\nnum_key_value_heads = 1\nhead_dim = 32\n"
      "[logging]\nstatistics_every_steps = 0\n"
      "[[stages]]\nname = \"s\"\nkind = \"pretrain\"\nsteps = 4\nbatch_sequences = 1\n"
      "micro_batch_sequences = 1\nsequence_length = 16\nlearning_rate.peak = 0.01\n"
      "learning_rate.warmup_steps = 0\ndata.problems = 20\n",
      "run.toml", {});
}

using States = std::map<std::string, std::vector<std::byte>>;

/// Everything that a checkpoint covers, as it is now.
States states_of(Execution& execution) {
  States states;
  const CheckpointScope scope = execution.scope();
  for_each_state(scope, [&](const std::string& name, const TensorView& view) {
    std::vector<std::byte>& bytes = states[name];
    bytes.resize(static_cast<std::size_t>(view.size()) * size_of(view.dtype));
    scope.backend.download(bytes.data(), view);
  });
  return states;
}

States states_in(const std::filesystem::path& path) {
  States states;
  const SafetensorsFile file(path);
  for (const StoredTensor& tensor : file.tensors()) {
    states[tensor.name] = read_bytes(tensor);
  }
  states.erase("checksums");
  return states;
}

}  // namespace

TEST_CASE("a checkpoint is of the step after which it was begun, through any memory") {
  const ScratchDirectory scratch;
  const auto path = scratch / "checkpoint.safetensors";
  const auto backend = make_backend("cpu", 2);
  Execution execution(configured(), *backend, {}, {});
  execution.begin_stage();
  CheckpointWriter writer(path);
  std::vector<std::uint64_t> hashes;
  std::string file_before;
  for (int step = 1; step <= 3; ++step) {
    execution.step();
    const States before = states_of(execution);
    CHECK_FALSE(writer.is_under_way());
    execution.prepare_checkpoints(writer);  // must be through with the memory when it is filled
    execution.begin_checkpoint(writer, 0);
    CHECK(writer.is_under_way());
    if (step < 3) execution.step();  // changes all weights and moments
    const CheckpointRecord record = writer.end();
    CHECK(record.step == (step == 3 ? 5 : 2 * step - 1));
    CHECK((states_in(path) == before));
    CHECK_FALSE((states_of(execution) == before) == (step < 3));
    verify_checkpoint(path);
    const CheckpointSummary summary = read_checkpoint(path);
    CHECK(summary.hash == record.hash);
    CHECK(summary.position.step == record.step);
    hashes.push_back(record.hash);
  }
  CHECK(hashes[0] != hashes[1]);
  CHECK(hashes[1] != hashes[2]);

  // The same through the least memory.
  const std::string whole = read_file(path);
  REQUIRE(whole.size() > 3 * BackgroundFile::kPiece);
  CheckpointWriter narrow(scratch / "narrow");
  RunPosition position = execution.position();
  narrow.begin(execution.scope(), position, read_checkpoint(path).identity, execution.recipe(),
               std::numeric_limits<std::int64_t>::max() / 2);
  CHECK(narrow.end().hash == hashes.back());
  CHECK((read_file(scratch / "narrow") == whole));
}

TEST_CASE("a checkpoint is copied through half of the memory that is left") {
  constexpr std::size_t kPiece = BackgroundFile::kPiece;
  CHECK(checkpoint_memory(1, 0) == 2 * kPiece);
  CHECK(checkpoint_memory(3 * kPiece, 0) == 3 * kPiece);
  CHECK(checkpoint_memory(3 * kPiece + 1, 0) == 4 * kPiece);
  const std::int64_t there = available_memory();
  REQUIRE(there > static_cast<std::int64_t>(64 * kPiece));
  REQUIRE(there <= machine_memory());
  CHECK(checkpoint_memory(64 * kPiece, there + (1 << 30)) == 2 * kPiece);
  const std::uint64_t huge = std::uint64_t{1} << 50;
  const auto half = static_cast<double>(checkpoint_memory(huge, 0));
  CHECK(half == Approx(0.5 * static_cast<double>(there)).epsilon(0.1));
  const auto quarter = static_cast<double>(checkpoint_memory(huge, there / 2));
  CHECK(quarter == Approx(0.25 * static_cast<double>(there)).epsilon(0.2));
}

TEST_CASE("steps go on while the disk is slow, and checkpoints wait for each other") {
  const ScratchDirectory scratch;
  const auto backend = make_backend("cpu", 1);
  RunConfig config = configured();
  config.model.vocab_size = 272;
  config.logging.checkpoint_every_steps = 1;
  TrainerOptions options;
  options.directory = scratch / "run";
  const auto path = options.directory / "checkpoint.safetensors";
  std::vector<std::int64_t> found;  // after each step
  options.progress = [&](const Progress&) {
    found.push_back(std::filesystem::exists(path) ? read_checkpoint(path).position.step : 0);
    disk_is_slow = true;  // from the first checkpoint on
  };
  most_syncing = 0;
  CHECK(Trainer(config, *backend, options).run() == RunOutcome::complete);
  disk_is_slow = false;
  CHECK(found == std::vector<std::int64_t>{0, 0, 1, 2});  // that of the step before is under way
  CHECK(most_syncing == 1);
  const RunStatus status = read_run_status(options.directory / "run.h5");
  CHECK(status.complete);
  REQUIRE(status.checkpoints.size() == 4);
  for (std::int64_t i = 0; i < 4; ++i) {
    CHECK(status.checkpoints[static_cast<std::size_t>(i)].step == i + 1);
  }
  const CheckpointSummary last = read_checkpoint(path);
  CHECK(last.hash == status.checkpoints.back().hash);
  CHECK(last.position.step == 4);
}
