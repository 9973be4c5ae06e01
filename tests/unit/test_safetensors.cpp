// The checkpoint container: round trip, and malformed files.
#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "emulation/api/error.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/safetensors.hpp"
#include "tests/unit/scratch_directory.hpp"

using namespace fp8lab;

namespace {

std::string with_header(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  return bytes + header + std::string(data_bytes, 'x');
}

}  // namespace

TEST_CASE("tensors and metadata survive a round trip") {
  const ScratchDirectory scratch;
  SafetensorsFile file;
  file.metadata = {{"step", "12"}, {"note", "a \"quoted\" word"}};
  StoredTensor weights{"w", DType::f32, 2, 3, std::vector<std::byte>(24)};
  const float values[] = {1.0f, -2.5f, 0.0f, 3e-40f, 7.0f, -0.0f};
  std::memcpy(weights.bytes.data(), values, sizeof values);
  file.tensors = {weights, {"codes", DType::u8, 1, 5, std::vector<std::byte>(5, std::byte{7})},
                  {"empty", DType::bf16, 0, 4, {}}};
  write_safetensors(scratch.path() / "a.safetensors", file);
  const SafetensorsFile read = read_safetensors(scratch.path() / "a.safetensors");
  CHECK(read.metadata == file.metadata);
  CHECK(read.at("w").bytes == weights.bytes);
  CHECK(read.at("w").rows == 2);
  CHECK(read.at("codes").dtype == DType::u8);
  CHECK(read.at("empty").bytes.empty());
  CHECK_THROWS_WITH(read.at("absent"), Catch::Contains("absent"));
}

TEST_CASE("malformed containers are refused with the file and the tensor") {
  const ScratchDirectory scratch;
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return "{\"t\": {\"dtype\": \"F32\", \"shape\": " + shape + ", \"data_offsets\": " + offsets +
           "}}";
  };
  const std::string two = "{\"a\": {\"dtype\": \"U8\", \"shape\": [1, 8], \"data_offsets\": [0, 8]},"
                          "\"b\": {\"dtype\": \"U8\", \"shape\": [1, 8], \"data_offsets\": [4, 12]}}";
  const struct {
    std::string bytes, message;
  } cases[] = {
      {"abc", "too short"},
      {std::string(8, '\xff'), "header length"},
      {with_header("[1, 2]", 0), "not a JSON object"},
      {with_header("{\"t\": 3", 0), "not a JSON object"},
      {with_header("{\"t\": 3}", 0), "malformed header entry"},
      {with_header(entry("[1, 2]", "[0, 8]"), 4), "outside the file"},
      {with_header(entry("[1, 2]", "[8, 0]"), 8), "outside the file"},
      {with_header(entry("[1, 3]", "[0, 8]"), 8), "larger than its data"},
      {with_header(entry("[1, 1]", "[0, 8]"), 8), "does not fit"},
      {with_header(entry("[4611686018427387904, 4]", "[0, 8]"), 8), "larger than its data"},
      {with_header(entry("[2]", "[0, 8]"), 8), "2-D"},
      {with_header(entry("[-1, 2]", "[0, 8]"), 8), "integers from 0 on"},
      {with_header(entry("[1.5, 2]", "[0, 8]"), 8), "integers from 0 on"},
      {with_header(entry("[1, 2]", "[0, 8e95]"), 8), "integers from 0 on"},
      {with_header(entry("[0, 9223372036854775808]", "[0, 0]"), 0), "integers from 0 on"},
      {with_header("{\"t\": {\"dtype\": \"Q7\", \"shape\": [1, 1], \"data_offsets\": [0, 4]}}", 4),
       "Q7"},
      {with_header("{\"__metadata__\": {\"a\": 1}}", 0), "metadata"},
      {with_header(two, 12), "overlap"},
  };
  for (const auto& [bytes, message] : cases) {
    INFO(message);
    write_file_atomically(scratch.path() / "bad.safetensors", bytes);
    CHECK_THROWS_WITH(read_safetensors(scratch.path() / "bad.safetensors"),
                      Catch::Contains(message) && Catch::Contains("bad.safetensors"));
  }
}
