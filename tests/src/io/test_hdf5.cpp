// Damaged HDF5 files: what cannot be read is not taken for absent or for other values, nobody waits
// for it, and nothing crashes.
#include "src/io/hdf5/hdf5.hpp"

#include <fmt/format.h>
#include <algorithm>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <iterator>
#include <random>

#include "emulation/base/error.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/io/run_log_examples.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A group with more links than HDF5 keeps in a header by itself.
std::string file_of_a_large_group(const std::filesystem::path& path) {
  Hdf5File file = Hdf5File::create(path, path);
  file.create_group("/group");
  for (int i = 0; i < 20; ++i) {
    file.create_extendable({.path = "/group/" + std::to_string(i),
                            .type = ElementType::f64,
                            .units = "1",
                            .description = "a column"});
  }
  file.close();
  return read(path);
}

std::string complete_run(const std::filesystem::path& path) {
  {
    RunMeta meta = example_meta();
    meta.recipe_text = "name = \"infir2\"\n" + std::string(5000, '#');
    const auto log = RunLog::create(path, meta, example_tensors());
    for (std::int64_t step = 1; step <= 3; ++step) log->append(example_step(step));
    log->append(EvalRecord{3, 0, 1.5, 0.25, 8});
    log->append(ScoreRecord{3, 0, "pass@4", 0.5, 8});
    log->append(DocumentRecord{3, 0, false, 12345, 1, 0, 7, 30, 45.5});
    log->append(CheckpointRecord{3, 12345});
    log->append_tensors(
        2, {example_statistics(2, 0), example_statistics(2, 1), example_statistics(2, 2)},
        {0, 1, 0});
    log->append_sample(2, "sample", {1.0f, 2.0f});
    log->complete(17);
  }
  return read(path);
}

/// Everything a reader gets, as text.
std::string everything(const std::filesystem::path& path) {
  const RunData run = read_run(path);
  const RunMeta& meta = run.meta;
  std::string text = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} ", meta.run_name, meta.recipe_name,
      meta.recipe_text, meta.recipe_resolved, meta.recipe_hash, meta.config_text, meta.config_hash,
      meta.data_hash, meta.initial_weights_hash, meta.code_version, meta.backend, meta.device,
      meta.seed, meta.parameter_count, meta.optimizer_states, run.complete, run.final_weight_hash);
  for (const std::string& name : meta.stage_names) text += name + " ";
  for (const auto& [key, value] : meta.extra) text += key + "=" + value + " ";
  for (const auto& [key, value] : meta.identity) text += key + "=" + value + " ";
  for (const TensorName& t : run.tensors) {
    text += fmt::format("{} {} {} {} ", t.layer, t.slot, t.format, t.scale_bits_per_element);
  }
  for (const StepRecord& r : run.metrics) {
    text += fmt::format("{} {} {} {} {} {} {} {} ", r.step, r.stage, r.tokens, r.loss, r.grad_norm,
                        r.learning_rate, r.seconds, r.weight_hash);
  }
  for (const EvalRecord& r : run.eval) {
    text +=
        fmt::format("{} {} {} {} {} ", r.step, r.stage, r.loss, r.exact_match, r.exact_match_count);
  }
  for (const ScoreRecord& r : run.scores) {
    text += fmt::format("{} {} {} {} {} ", r.step, r.stage, r.name, r.value, r.count);
  }
  for (const DocumentRecord& r : run.documents) {
    text += fmt::format("{} {} {} {} {} {} {} {} {} ", r.step, r.stage, r.in_bf16, r.text, r.count,
                        r.source, r.document, r.tokens, r.nats);
  }
  for (const EventRecord& r : run.events) text += fmt::format("{} {} ", r.kind, r.message);
  for (const CheckpointRecord& r : read_run_status(path).checkpoints) {
    text += fmt::format("{} {} ", r.step, r.hash);
  }
  for (const char* name : {"sqnr_db", "top_channel", "exponent_histogram"}) {
    for (const double value : read_statistic(path, name)) text += fmt::format("{} ", value);
  }
  for (const Sample& sample : read_samples(path)) {
    text += fmt::format("{} {} {} ", sample.step, sample.name, sample.values.size());
  }
  return text;
}

}  // namespace

TEST_CASE("a damaged group is no group without the link, and nobody waits for it") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch / "large.h5";
  const std::string bytes = file_of_a_large_group(path);
  {
    const Hdf5File file = Hdf5File::open(path);
    REQUIRE(file.has("/group/7"));
    REQUIRE_FALSE(file.has("/group/20"));
    REQUIRE_FALSE(file.has("/other/7"));
  }
  int absent = 0, refused = 0;
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t at = 0; at < bytes.size(); at += 61) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write(path, damaged);
    try {
      absent += Hdf5File::open(path).has("/group/7") ? 0 : 1;
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(absent == 0);
  CHECK(refused > 10);
  // A SWMR reader would take half a second for every refusal.
  CHECK(std::chrono::steady_clock::now() - began < 0.1 * refused * std::chrono::seconds(1));
}

TEST_CASE("every damage of a run file is refused or harmless") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch / "run.h5";
  const std::string bytes = complete_run(path);
  const std::string right = everything(path);
  std::mt19937 random(1);
  int refused = 0, wrong = 0;
  const auto read_damaged = [&](const std::string& damaged, const std::string& what) {
    write(path, damaged);
    try {
      if (everything(path) == right) return;
      ++wrong;
      UNSCOPED_INFO(what);
    } catch (const Error&) {
      ++refused;
    }
  };
  for (std::size_t at = random() % 83; at < bytes.size(); at += 1 + random() % 83) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    read_damaged(damaged, fmt::format("bit of byte {}", at));
  }
  for (const std::size_t page : {64u, 512u, 4096u}) {
    for (std::size_t at = 0; at < bytes.size(); at += page) {
      std::string damaged = bytes;
      const std::size_t length = std::min(page, bytes.size() - at);
      damaged.replace(at, length, length, '\0');
      read_damaged(damaged, fmt::format("{} zeros at {}", length, at));
    }
  }
  CHECK(wrong == 0);
  CHECK(refused > 500);
}

TEST_CASE("an extent without data behind it is refused before memory is taken for it") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch / "run.h5";
  complete_run(path);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t steps = H5Dopen2(file, "/metrics/step", H5P_DEFAULT);
  const hsize_t claimed = 200'000;  // 1.6 MB of 64-bit numbers
  REQUIRE(H5Dset_extent(steps, &claimed) >= 0);
  H5Dclose(steps);
  H5Fclose(file);
  CHECK_THROWS_WITH(read_run(path), Catch::Contains("claims 200000 rows"));
}
