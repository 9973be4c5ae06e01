// Damaged HDF5 files: what cannot be read is not taken for absent, and nobody waits for it.
#include "src/io/hdf5.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <iterator>

#include "emulation/api/error.hpp"
#include "tests/unit/scratch_directory.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

/// A group with so many links that HDF5 moves them into a heap of their own.
std::string file_of_a_large_group(const std::filesystem::path& path) {
  {
    Hdf5File file = Hdf5File::create(path, path);
    file.create_group("/group");
    for (int i = 0; i < 20; ++i) {
      file.create_extendable({.path = "/group/" + std::to_string(i),
                              .type = ElementType::f64,
                              .units = "1",
                              .description = "a column"});
    }
    file.close();
  }
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("a damaged group is no group without the link") {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch / "large.h5";
  const std::string bytes = file_of_a_large_group(path);
  {
    const Hdf5File file = Hdf5File::open(path);
    REQUIRE(file.has("/group/7"));
    REQUIRE_FALSE(file.has("/group/20"));
    REQUIRE_FALSE(file.has("/other/7"));
  }
  std::size_t blocks = 0;
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t at = bytes.find("FHDB"); at != std::string::npos;
       at = bytes.find("FHDB", at + 1)) {
    std::string damaged = bytes;
    damaged[at + 40] = static_cast<char>(damaged[at + 40] ^ 1);
    write(path, damaged);
    ++blocks;
    const Hdf5File file = Hdf5File::open(path);
    CHECK_THROWS_AS(file.has("/group/7"), Error);
  }
  REQUIRE(blocks >= 1);
  // A SWMR reader would take half a second for every call.
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(400));
}
