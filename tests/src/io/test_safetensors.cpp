// The safetensors container: round trips, shards, and malformed files.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/tensors/safetensors.hpp"
#include "src/io/tensors/tensor_store.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;

namespace {

/// Bytes that differ from tensor to tensor and from place to place.
TensorBytes pattern(const TensorHeader& tensor) {
  TensorBytes bytes(tensor.bytes());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(31 * i + 7 * tensor.name.size() + i / 251);
  }
  return bytes;
}

const std::vector<StoredType> kAllTypes = {
    StoredType::boolean, StoredType::u8,      StoredType::i8,  StoredType::f8_e4m3,
    StoredType::f8_e5m2, StoredType::f8_e8m0, StoredType::u16, StoredType::i16,
    StoredType::f16,     StoredType::bf16,    StoredType::u32, StoredType::i32,
    StoredType::f32,     StoredType::u64,     StoredType::i64, StoredType::f64};

}  // namespace

TEST_CASE("every type and rank survives a round trip, aligned") {
  const ScratchDirectory scratch;
  std::vector<TensorHeader> tensors = {{"number", StoredType::f32, {}},
                                       {"none", StoredType::bf16, {0, 4}},
                                       {"deep", StoredType::u8, {1, 3, 1, 3, 1, 1, 3}}};
  for (const StoredType type : kAllTypes) {
    tensors.push_back({"t." + std::string(stored_name(type)), type, {3, 5}});
  }
  const std::map<std::string, std::string> metadata = {{"step", "12"}, {"note", "a \"word\" \n"}};
  const auto path = scratch / "a.safetensors";
  write_safetensors(path, metadata, tensors, [&](std::size_t i) { return pattern(tensors[i]); });
  const SafetensorsFile read(path);
  CHECK(read.metadata() == metadata);
  CHECK(read.tensors().size() == tensors.size());
  for (const TensorHeader& tensor : tensors) {
    INFO(tensor.name);
    const StoredTensor& found = read.at(tensor.name);
    CHECK(found.type == tensor.type);
    CHECK(found.shape == tensor.shape);
    CHECK(read_bytes(found) == pattern(tensor));
    CHECK(found.offset % size_of(tensor.type) == 0);
  }
  CHECK_THROWS_WITH(read.at("absent"),
                    Catch::Contains("a.safetensors") && Catch::Contains("absent"));
}

TEST_CASE("elements are read and written as their values") {
  const ScratchDirectory scratch;
  const std::vector<float> values = {1.0f, -2.5f, 0.0f, 448.0f, -0.0f, 0.015625f, 0x1p-9f, -416.0f};
  std::vector<TensorHeader> tensors;
  for (const StoredType type : {StoredType::f32, StoredType::bf16, StoredType::f16}) {
    tensors.push_back({std::string(stored_name(type)), type, {2, 4}});
  }
  tensors.push_back({"F8_E4M3", StoredType::f8_e4m3, {2, 4}});
  write_safetensors(scratch / "a", {}, tensors, [&](std::size_t i) {
    TensorBytes bytes(tensors[i].bytes());
    if (i < 3) {
      encode_elements(tensors[i].type, values, bytes);
    } else {
      for (std::size_t k = 0; k < values.size(); ++k)
        bytes[k] = std::byte{numerics::to_e4m3(values[k])};
    }
    return bytes;
  });
  const SafetensorsFile file(scratch / "a");
  for (const TensorHeader& tensor : tensors) {
    INFO(tensor.name);
    std::vector<float> read(5);
    read_elements(file.at(tensor.name), 3, read);
    CHECK(std::memcmp(read.data(), values.data() + 3, 5 * sizeof(float)) == 0);
  }
}

TEST_CASE("an element that lies at an odd address is read") {
  const ScratchDirectory scratch;
  const std::string header =
      "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}";
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  const float value = -3.75f;
  bytes += header + "x" + std::string(reinterpret_cast<const char*>(&value), 4);
  write_file_atomically(scratch / "a", bytes);
  const SafetensorsFile file(scratch / "a");
  std::vector<float> read(1);
  read_elements(file.at("b"), 0, read);
  CHECK(read[0] == value);
}

TEST_CASE("a pieced read equals the whole") {
  const ScratchDirectory scratch;
  const std::vector<TensorHeader> tensors = {{"big", StoredType::bf16, {1500, 2001}}};
  write_safetensors(scratch / "a", {}, tensors, [&](std::size_t i) { return pattern(tensors[i]); });
  const SafetensorsFile file(scratch / "a");
  std::vector<float> whole(1500 * 2001), part(1234567);
  read_elements(file.at("big"), 0, whole);
  read_elements(file.at("big"), 777777, part);
  const TensorBytes bytes = pattern(tensors[0]);
  for (std::size_t i = 0; i < whole.size(); i += 997) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &bytes[2 * i], 2);
    REQUIRE(numerics::float_bits(whole[i]) == std::uint32_t{bits} << 16);
  }
  CHECK(std::memcmp(part.data(), whole.data() + 777777, part.size() * sizeof(float)) == 0);
}

TEST_CASE("a store is written in shards of the wanted size and read back") {
  const ScratchDirectory scratch;
  std::vector<TensorHeader> tensors;
  for (int i = 0; i < 7; ++i) {
    tensors.push_back(
        {"t" + std::to_string(i), i % 2 == 0 ? StoredType::f32 : StoredType::u8, {10 + i, 3}});
  }
  const auto produce = [&](std::size_t i) { return pattern(tensors[i]); };
  for (const std::uint64_t shard_bytes :
       {std::uint64_t{1}, std::uint64_t{250}, std::uint64_t{1} << 30}) {
    const auto folder = scratch / std::to_string(shard_bytes);
    std::filesystem::create_directories(folder);
    write_tensor_store(folder, shard_bytes, tensors, produce);
    const TensorStore store(folder);
    CHECK(store.files().size() == (shard_bytes == 1 ? 7u : shard_bytes == 250 ? 4u : 1u));
    CHECK(std::filesystem::exists(folder / "model.safetensors") == (shard_bytes > 250));
    CHECK(store.tensors().size() == tensors.size());
    for (const TensorHeader& tensor : tensors)
      CHECK(read_bytes(store.at(tensor.name)) == pattern(tensor));
    for (const SafetensorsFile& file : store.files()) {
      std::uint64_t total = 0;
      for (const StoredTensor& tensor : file.tensors()) total += tensor.bytes();
      CHECK((total <= shard_bytes || file.tensors().size() == 1));
    }
  }
}

TEST_CASE("a file that changes under its reader is refused, one that is replaced is read on") {
  const ScratchDirectory scratch;
  const auto path = scratch / "a";
  const std::vector<TensorHeader> tensors = {{"t", StoredType::f32, {600, 2000}}};
  const auto write = [&] {
    write_safetensors(path, {}, tensors, [&](std::size_t i) { return pattern(tensors[i]); });
    // As old as files are that somebody left: its time of change is not that of a change now.
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  };
  const std::size_t size = tensors[0].bytes();
  std::vector<float> part(10);
  write();
  {
    const SafetensorsFile file(path);
    read_elements(file.at("t"), 0, part);
    std::filesystem::resize_file(path, size / 2);
    CHECK_THROWS_WITH(read_elements(file.at("t"), 1199990, part), Catch::Contains("was cut off"));
    CHECK_THROWS_WITH(read_elements(file.at("t"), 0, part), Catch::Contains("was cut off"));
    CHECK_THROWS_AS(read_bytes(file.at("t")), RuntimeFailure);
  }
  write();
  {
    const SafetensorsFile file(path);
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('!');
    CHECK_THROWS_WITH(read_elements(file.at("t"), 1199990, part),
                      Catch::Contains("was written to while it was in use"));
  }
  write();
  const SafetensorsFile file(path);
  write_safetensors(path, {}, {{"u", StoredType::u8, {3}}},
                    [](std::size_t) { return TensorBytes(3, std::byte{1}); });
  CHECK(read_bytes(file.at("t")) == pattern(tensors[0]));
  std::filesystem::remove(path);
  CHECK(read_bytes(file.at("t")) == pattern(tensors[0]));
}

TEST_CASE("a failed write leaves the old file") {
  const ScratchDirectory scratch;
  const std::vector<TensorHeader> tensors = {{"t", StoredType::u8, {4}}};
  const auto write = [&](std::byte value) {
    write_safetensors(scratch / "a", {}, tensors, [&](std::size_t) -> TensorBytes {
      if (value == std::byte{0}) throw Error("no value");
      return TensorBytes(4, value);
    });
  };
  write(std::byte{7});
  CHECK_THROWS_WITH(write(std::byte{0}), "no value");
  CHECK(read_bytes(SafetensorsFile(scratch / "a").at("t")) == TensorBytes(4, std::byte{7}));
  CHECK(std::distance(std::filesystem::directory_iterator(scratch.path()),
                      std::filesystem::directory_iterator()) == 1);
}

TEST_CASE("no two tensors of one name are written, in one file or in two") {
  const ScratchDirectory scratch;
  const std::vector<TensorHeader> tensors = {
      {"t", StoredType::u8, {4}}, {"u", StoredType::u8, {4}}, {"t", StoredType::u8, {4}}};
  const auto produce = [&](std::size_t) { return TensorBytes(4); };
  CHECK_THROWS_WITH(write_safetensors(scratch / "a", {}, tensors, produce),
                    Catch::Contains("tensor 't'"));
  for (const std::uint64_t shard_bytes : {4u, 1000u}) {
    CHECK_THROWS_WITH(write_tensor_store(scratch.path(), shard_bytes, tensors, produce),
                      Catch::Contains("tensor 't'"));
  }
  CHECK_THROWS_WITH(write_safetensors(scratch / "a", {{"k", "v"}},
                                      {{"__metadata__", StoredType::u8, {4}}}, produce),
                    Catch::Contains("__metadata__"));
  CHECK(std::filesystem::is_empty(scratch.path()));
}
