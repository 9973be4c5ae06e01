// Run files: a valid one, cut off or with bytes changed at places that the input chooses.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "src/io/run_log.hpp"
#include "src/io/run_reader.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "tests/unit/run_log_examples.hpp"
#include "tests/unit/scratch_directory.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

std::vector<char> valid_file() {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch / "run.h5";
  {
    RunMeta meta = example_meta();
    meta.recipe_text = "name = \"infir2\"\n";
    const auto log = RunLog::create(path, meta, example_tensors());
    for (std::int64_t step = 1; step <= 3; ++step) log->append(example_step(step));
    log->append_tensors(2, {3, example_statistics(2, 0)});
    log->complete(17);
  }
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<char> valid = valid_file();
  static fuzz::MemoryFile file;
  std::vector<char> bytes = valid;
  fuzz::Choices choices(data, size);
  if (choices.below(4) == 0) bytes.resize(choices.below(static_cast<std::uint32_t>(bytes.size())));
  for (int patches = 0; patches < 8 && !choices.empty() && !bytes.empty(); ++patches) {
    bytes[choices.below(static_cast<std::uint32_t>(bytes.size()))] = choices.value<char>();
  }
  file.assign(bytes.data(), bytes.size());
  fuzz::accept_error([&] { read_run(file.path()); });
  fuzz::accept_error([&] { read_statistic(file.path(), "sqnr_db"); });
  fuzz::accept_error([&] { read_samples(file.path()); });
  return 0;
}
