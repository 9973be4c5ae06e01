#include <catch2/catch.hpp>
#include <string>

#include "emulation/base/error.hpp"
#include "src/io/tensors/npz.hpp"
#include "tests/src/io/zip_file.hpp"

using namespace fp8lab;
using Catch::Contains;
using test::zip_file;

namespace {

std::string array_of(int elements, std::uint8_t first) {
  NpyArray array;
  array.dtype = DType::u8;
  array.rows = 1;
  array.cols = elements;
  for (int i = 0; i < elements; ++i) {
    array.data.push_back(static_cast<std::byte>(first + i / 7));
  }
  return format_npy(array);
}

const test::ZipMembers kMembers = {{"x.npy", array_of(300, 1)}, {"y.npy", array_of(5, 9)}};

std::string message_for(const std::string& bytes) {
  try {
    parse_npz(bytes, "x.npz");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("npz: stored and deflated arrays by their names") {
  for (const bool compressed : {false, true}) {
    const std::string bytes = zip_file(kMembers, compressed);
    CHECK((bytes.size() < zip_file(kMembers, false).size()) == compressed);
    const NpzArchive archive = parse_npz(bytes, "x.npz");
    REQUIRE(archive.arrays().size() == 2);
    REQUIRE(archive.find("x") != nullptr);
    CHECK(archive.find("x")->cols == 300);
    CHECK(archive.find("x")->data[8] == std::byte{2});
    CHECK(archive.find("y")->cols == 5);
    CHECK(archive.find("z") == nullptr);
    // A comment may follow.
    std::string commented = bytes;
    commented.replace(commented.size() - 2, 2, std::string("\x03\0", 2) + "PK!");
    CHECK(parse_npz(commented, "x.npz").arrays().size() == 2);
  }
  CHECK(parse_npz(zip_file({}, false), "x.npz").arrays().empty());
}

TEST_CASE("npz: damaged archives are refused with the reason") {
  // libzip 1.7 and 1.11 say it in different words; "": they find different faults.
  constexpr const char* kMalformed = "malformed .npz archive: ";
  const std::string stored = zip_file(kMembers, false), packed = zip_file(kMembers, true);
  const std::size_t directory = stored.find("PK\x01\x02");
  const auto changed = [](std::string bytes, std::size_t at, char value) {
    bytes.replace(at, 1, 1, value);  // Throws std::out_of_range past the end.
    return bytes;
  };
  const std::pair<std::string, const char*> cases[] = {
      {"", "it is empty"},
      {stored.substr(0, stored.size() - 1), kMalformed},
      {stored.substr(1), kMalformed},
      {changed(stored, stored.size() - 3, 1), kMalformed},
      {changed(stored, directory, 'Q'), kMalformed},
      {changed(stored, directory + 8, 1), ""},
      {changed(stored, directory + 10, 12), kMalformed},
      {changed(stored, directory + 24, 1), kMalformed},
      {changed(stored, directory + 42, 1), kMalformed},
      {changed(stored, 200, '!'), "x.npy: CRC error"},
      {changed(packed, packed.find("AA") + 20, '!'), "x.npy: "},
      {changed(changed(packed, packed.find("PK\x01\x02") + 27, 127), 25, 127), "do not deflate to"},
      {changed(stored, stored.size() - 18, 1), kMalformed},
      {zip_file({kMembers[0], kMembers[0]}, false), "File already exists"},
      {zip_file({{"x.txt", "text"}}, true), "x.npz: x.txt: not a .npy file"},
  };
  for (const auto& [bytes, reason] : cases) {
    INFO(reason);
    CHECK_THAT(message_for(bytes), Contains(reason) && Contains("x.npz: "));
  }
}

TEST_CASE("npz: every truncation is refused, every changed byte refused or harmless") {
  for (const bool compressed : {false, true}) {
    const std::string good = zip_file({kMembers[1]}, compressed);
    for (std::size_t size = 0; size < good.size(); ++size) {
      CHECK(message_for(good.substr(0, size)) != "accepted");
    }
    for (std::size_t i = 0; i < good.size(); ++i) {
      for (const int bit : {1, 2, 4, 8, 16, 32, 64, 128}) {
        std::string changed = good;
        changed[i] = static_cast<char>(changed[i] ^ bit);
        if (message_for(changed) != "accepted") continue;
        // What no check covers: versions, times, the local header, external attributes.
        const NpzArchive archive = parse_npz(changed, "x.npz");
        for (const auto& [name, array] : archive.arrays()) {
          CHECK(array.data == parse_npz(good, "x.npz").arrays()[0].second.data);
        }
      }
    }
  }
}
