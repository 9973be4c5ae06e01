// Run files on disks that lose bits and have little room.
#include <algorithm>
#include <catch2/catch.hpp>

#include "emulation/base/error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/io/run_log_examples.hpp"

using namespace fp8lab;
namespace fs = std::filesystem;

TEST_CASE("run log: what a flush takes from the disk beforehand is enough, and little") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  const auto log = RunLog::create(path, example_meta(), example_tensors());
  std::uintmax_t largest = 0, reserved = 0;
  for (std::int64_t step = 1; step <= 3000; ++step) {
    log->append(example_step(step));
    append_tensors(*log, step);
    log->append(CheckpointRecord{step, 1});
    log->append(EventRecord{step, "event", "message"});
    const std::uintmax_t before = fs::file_size(path);
    reserved = std::max<std::uintmax_t>(reserved, log->space_needed());
    const std::uintmax_t room = log->space_needed();
    log->flush();
    const std::uintmax_t growth = fs::file_size(path) - before;
    largest = std::max(largest, growth);
    REQUIRE(growth <= room);
  }
  INFO("largest growth " << largest << ", reserved " << reserved);
  CHECK(reserved < 600'000);
}

TEST_CASE("run log: a flipped bit is found, or touches nothing that is read") {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "run.h5";
  { write_example(*RunLog::create(path, example_meta(), example_tensors())); }
  const std::string whole = read_file(path);
  const auto everything = [&](const fs::path& file) {
    const RunData run = read_run(file);
    std::string text = run.meta.recipe_text + run.meta.config_text + run.meta.run_name +
                       run.meta.recipe_hash + std::to_string(run.meta.seed);
    for (const auto& [name, hash] : run.meta.identity) text += name + hash;
    for (const auto& [name, value] : run.meta.extra) text += name + value;
    for (const TensorName& tensor : run.tensors) text += tensor.layer + tensor.slot + tensor.format;
    for (const StepRecord& row : run.metrics) {
      text += std::to_string(row.loss) + std::to_string(row.weight_hash);
    }
    for (const EvalRecord& row : run.eval) text += std::to_string(row.loss);
    for (const double value : read_statistic(file, "sqnr_db")) text += std::to_string(value);
    for (const Sample& sample : read_samples(file)) text += sample.name;
    return text;
  };
  const std::string expected = everything(path);
  int refused = 0;
  for (std::size_t i = 0; i < 300; ++i) {
    std::string bytes = whole;
    const std::size_t at = i * 2654435761u % bytes.size();
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << i % 8));
    write_file_atomically(scratch / "flipped.h5", bytes);
    std::string found;
    try {
      found = everything(scratch / "flipped.h5");
    } catch (const Error&) {
      ++refused;
      continue;
    }
    INFO("byte " << at << " of " << bytes.size());
    CHECK(found == expected);
  }
  CHECK(refused > 100);
}
