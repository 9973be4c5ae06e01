// Drives one fuzz target without libFuzzer: replays files, then runs random inputs that follow from
// the seed. Usage: TARGET [-runs=N] [-seed=S] FILE|DIRECTORY...
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "emulation/cases/case_generator.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace {

using fp8lab::RandomWords;
using Input = std::vector<std::uint8_t>;
namespace fs = std::filesystem;

constexpr std::size_t kLargestInput = 512;

Input read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  fp8lab::fuzz::require(file.good(), "cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void add_seeds(const fs::path& path, std::vector<Input>& seeds) {
  if (!fs::is_directory(path)) {
    seeds.push_back(read(path));
    return;
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) seeds.push_back(read(file));
}

Input random_input(RandomWords& random) {
  Input input(random.next() % kLargestInput);
  for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random.next());
  return input;
}

/// One to eight of: a byte or bit changed, a range removed or repeated, the end cut off, another
/// seed's bytes put in.
void mutate(Input& input, const std::vector<Input>& seeds, RandomWords& random) {
  for (std::uint32_t left = 1 + random.next() % 8; left > 0; --left) {
    if (input.empty()) input.push_back(static_cast<std::uint8_t>(random.next()));
    const auto place = static_cast<std::ptrdiff_t>(random.next() % input.size());
    const auto length = std::min<std::ptrdiff_t>(1 + random.next() % 16,
                                                 static_cast<std::ptrdiff_t>(input.size()) - place);
    const auto first = input.begin() + place;
    switch (random.next() % 6) {
      case 0: *first = static_cast<std::uint8_t>(random.next()); break;
      case 1: *first = static_cast<std::uint8_t>(*first ^ (1u << random.next() % 8u)); break;
      case 2: input.erase(first, first + length); break;
      case 3: {
        const Input range(first, first + length);
        input.insert(first, range.begin(), range.end());
        break;
      }
      case 4: input.resize(static_cast<std::size_t>(place)); break;
      default: {
        const Input& other = seeds[random.next() % seeds.size()];
        if (other.empty()) break;
        const std::size_t from = random.next() % other.size();
        const std::size_t count = std::min<std::size_t>(32, other.size() - from);
        const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
        input.insert(first, begin, begin + static_cast<std::ptrdiff_t>(count));
      }
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::uint64_t runs = 0, seed = 1;
  std::vector<Input> seeds;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument.rfind("-runs=", 0) == 0) {
      runs = std::strtoull(argument.c_str() + 6, nullptr, 10);
    } else if (argument.rfind("-seed=", 0) == 0) {
      seed = std::strtoull(argument.c_str() + 6, nullptr, 10);
    } else {
      add_seeds(argument, seeds);
    }
  }
  for (const Input& input : seeds) LLVMFuzzerTestOneInput(input.data(), input.size());
  RandomWords random(seed);
  for (std::uint64_t run = 0; run < runs; ++run) {
    Input input;
    if (seeds.empty() || random.next() % 8 == 0) {
      input = random_input(random);
    } else {
      input = seeds[random.next() % seeds.size()];
      mutate(input, seeds, random);
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu files, %llu random inputs\n", seeds.size(),
              static_cast<unsigned long long>(runs));
  return 0;
}
