// Device packs: written and read back, compared with the profiles of their cards, and with planted
// deviations, each of which must be named.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/cases/case_generator.hpp"
#include "emulation/numerics/codec.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/tensors/safetensors.hpp"
#include "src/validate/device_check.hpp"
#include "src/validate/device_pack.hpp"
#include "src/validate/golden_file.hpp"
#include "src/validate/measure_device.hpp"
#include "tests/scratch_directory.hpp"

namespace {

using namespace fp8lab;  // NOLINT: the subject of every line below
using numerics::Alignment;
using numerics::FormatSpec;
using numerics::GroupModel;
using numerics::kBF16;
using numerics::kE4M3;
using numerics::kE5M2;
using numerics::kFP16;
using numerics::kTF32;

/// Inputs of an instruction, without results.
DeviceProducts inputs(const std::string& instruction, const FormatSpec& a, const FormatSpec& b,
                      bool to_f16, std::int64_t k, std::int64_t promote = 0) {
  DeviceProducts one;
  one.instruction = instruction;
  one.format_a = a;
  one.format_b = b;
  one.to_f16 = to_f16;
  one.promote = promote;
  one.tiles = 8;
  one.rows = 16;
  one.columns = 8;
  one.k = k;
  CaseGenerator cases(7);
  one.a = cases.codes<std::uint32_t>(a, one.tiles * one.rows, k, 3, 16, true);
  one.b = cases.codes<std::uint32_t>(b, one.tiles * one.columns, k, 3, 16, true);
  if (promote > 0) return one;
  for (std::int64_t i = 0; i < one.results(); ++i) {
    const std::uint32_t c = numerics::float_bits(cases.accumulator());
    one.c.push_back(i % 2 == 0 ? 0 : to_f16 ? numerics::encode(kFP16, c) : c);
  }
  return one;
}

DeviceProducts computed(DeviceProducts one, const Accumulator& accumulator) {
  one.d = emulated_products(one, accumulator);
  return one;
}

DeviceConversions conversions(const FormatSpec& format) {
  DeviceConversions one;
  one.format = format;
  CaseGenerator cases(9);
  for (int kind = 0; kind < kValueKinds; ++kind) {
    for (const float value : cases.values(format, static_cast<ValueKind>(kind), 64)) {
      one.inputs.push_back(numerics::float_bits(value));
    }
  }
  const auto overflow =
      format.bits() <= 8 ? numerics::Overflow::saturate : numerics::Overflow::special;
  for (const std::uint32_t x : one.inputs) {
    one.codes.push_back(numerics::encode(format, x, numerics::Rounding::nearest, overflow));
  }
  return one;
}

const DeviceFacts kHopper{"a card", 9, 0, 13000, 13000, "0.2.0"};

DevicePack hopper_pack() {
  DevicePack pack;
  pack.facts = kHopper;
  pack.products = {
      computed(inputs("mma.sync", kE4M3, kE5M2, false, 32), Accumulator::sm90_mma_sync_fp8),
      computed(inputs("mma.sync", kE4M3, kE4M3, true, 128), Accumulator::sm90_mma_sync_fp8_f16),
      computed(inputs("mma.sync", kBF16, kBF16, false, 64, 32), Accumulator::sm90_bf16),
      computed(inputs("mma.sync", kFP16, kFP16, true, 16), Accumulator::sm90_f16_f16acc),
      computed(inputs("mma.sync", kTF32, kTF32, false, 8), Accumulator::sm90_tf32),
      computed(inputs("wgmma", kE5M2, kE5M2, false, 256, 128), Accumulator::sm90_wgmma_fp8)};
  pack.conversions = {conversions(kE4M3), conversions(kE5M2), conversions(kBF16),
                      conversions(kFP16)};
  return pack;
}

DeviceFinding only(const DeviceFacts& facts, const DeviceProducts& products) {
  return check_device_pack({facts, {products}, {}}).at(0);
}

TEST_CASE("A pack is read as it was written") {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "pack.safetensors";
  const DevicePack pack = hopper_pack();
  write_device_pack(path, pack);
  CHECK(read_device_pack(path) == pack);
}

TEST_CASE("A card with the recorded profiles has no deviation") {
  for (const DeviceFinding& finding : check_device_pack(hopper_pack())) {
    CAPTURE(finding.what, finding.first);
    CHECK(finding.results > 500);
    CHECK(finding.different == 0);
    CHECK(finding.unchecked == 0);
    CHECK(finding.deviation.empty());
    CHECK(!finding.expected.empty());
  }
}

TEST_CASE("Every card that was recorded is compared with its own profiles") {
  struct Row {
    int major, minor;
    const char *instruction, *profile;
    FormatSpec format;
    bool to_f16;
  };
  for (const Row& row : {Row{8, 0, "mma.sync", "sm80_bf16", kBF16, false},
                         Row{8, 6, "mma.sync", "sm80_tf32", kTF32, false},
                         Row{8, 9, "mma.sync", "sm89_mma_fp8", kE4M3, false},
                         Row{8, 9, "mma.sync", "sm89_mma_fp8_f16", kE5M2, true},
                         Row{9, 0, "mma.sync", "sm90_f16", kFP16, false},
                         Row{9, 0, "wgmma", "sm90_wgmma_fp8", kE4M3, false},
                         Row{10, 0, "mma.sync", "sm100_f16_f16acc", kFP16, true},
                         Row{12, 0, "mma.sync", "sm120_mma_fp8", kE5M2, false}}) {
    CAPTURE(row.profile);
    DeviceProducts one;
    one.instruction = row.instruction;
    one.format_a = one.format_b = row.format;
    one.to_f16 = row.to_f16;
    const TensorCoreProfile* const profile =
        expected_profile({"", row.major, row.minor, 0, 0, ""}, one);
    REQUIRE(profile != nullptr);
    CHECK(profile->name == row.profile);
    CHECK(recorded_cards(row.major, row.minor).empty() == (row.major == 12));
  }
}

/// A record of an H200 (tests/golden) as the products of a pack; no instruction for ops that a pack
/// does not have.
DeviceProducts recorded(const MmaRecord& record) {
  constexpr std::size_t kTiles = 3;
  DeviceProducts one;
  const std::uint32_t op = record.op;
  const bool is_mma = op == 2 || op == 3 || op == 6 || op == 7 || op == 9;
  one.instruction = op == 0 ? "wgmma" : is_mma ? "mma.sync" : "";
  one.format_a = *golden_format(record.format_a);
  one.format_b = *golden_format(record.format_b);
  one.to_f16 = record.accumulator_bits == 16;
  one.tiles = static_cast<std::int64_t>(std::min(kTiles, record.tiles.size()));
  one.rows = 64;
  one.columns = 8;
  one.k = record.k;
  for (std::int64_t i = 0; i < one.tiles; ++i) {
    const MmaTile& tile = record.tiles[static_cast<std::size_t>(i)];
    one.a.insert(one.a.end(), tile.a.begin(), tile.a.end());
    one.b.insert(one.b.end(), tile.b.begin(), tile.b.end());
    one.c.insert(one.c.end(), tile.c.begin(), tile.c.end());
    one.d.insert(one.d.end(), tile.d.begin(), tile.d.end());
  }
  return one;
}

TEST_CASE("What an H200 returned agrees with the profiles of its compute capability alone") {
  int compared = 0, unlike_ada = 0;
  const DeviceFacts ada{"a card", 8, 9, 13000, 13000, "0.2.0"};
  read_mma_records(std::string(FP8LAB_TEST_DATA) + "/golden/mma.bin", [&](const MmaRecord& record) {
    const DeviceProducts products = recorded(record);
    if (products.instruction.empty()) return;
    ++compared;
    const DeviceFinding here = only(kHopper, products);
    CAPTURE(record.name, here.what, here.deviation, here.first);
    CHECK(here.unchecked == 0);
    CHECK(here.different == 0);
    if (products.instruction == "wgmma") return;
    const DeviceFinding there = only(ada, products);
    if (there.different > 0) ++unlike_ada;
  });
  CHECK(compared >= 10);
  CHECK(unlike_ada >= 5);
}

TEST_CASE("A planted deviation is named") {
  struct Planted {
    std::function<void(GroupModel&)> change;
    std::string name;
  };
  const std::vector<Planted> all = {
      {[](GroupModel& g) { g.fraction_bits = 14; }, "fraction_bits 14 instead of 13"},
      {[](GroupModel& g) { g.fraction_bits = 12; }, "fraction_bits 12 instead of 13"},
      {[](GroupModel& g) { g.products = 8; }, "products 8 instead of 16"},
      {[](GroupModel& g) { g.output_mantissa_bits = 12; }, "output_mantissa_bits 12 instead of 13"},
      {[](GroupModel& g) { g.alignment = Alignment::nearest_even; },
       "alignment nearest instead of truncate"},
      {[](GroupModel& g) { g.output_rounding = Alignment::nearest_even; },
       "output_rounding nearest instead of truncate"},
      {[](GroupModel& g) {
         g.fraction_bits = 16;
         g.output_mantissa_bits = 15;
       },
       "fraction_bits 16 instead of 13, output_mantissa_bits 15 instead of 13"}};
  const DeviceFacts ada{"a card", 8, 9, 13000, 13000, "0.2.0"};
  const DeviceProducts asked = inputs("mma.sync", kE4M3, kE4M3, false, 128);
  for (const Planted& planted : all) {
    Accumulator accumulator = Accumulator::sm89_mma_fp8;
    planted.change(accumulator.group);
    const DeviceFinding found = only(ada, computed(asked, accumulator));
    CAPTURE(planted.name, found.first);
    CHECK(found.different > 0);
    CHECK(found.deviation == planted.name);
    CHECK(found.first.find("expected 0x") != std::string::npos);
  }
  const DeviceFinding other = only(ada, computed(asked, Accumulator::sm90_wgmma_fp8));
  CHECK(other.deviation == "the bits of sm90_wgmma_fp8");
}

TEST_CASE("Another promotion is named") {
  DeviceProducts asked = inputs("wgmma", kE4M3, kE4M3, false, 256, 128);
  const auto with = [&](std::int64_t promote) {
    DeviceProducts one = asked;
    one.promote = promote;
    one.d = emulated_products(one, Accumulator::sm90_wgmma_fp8);
    one.promote = asked.promote;
    return only(kHopper, one).deviation;
  };
  CHECK(with(128).empty());
  CHECK(with(64) == "promoted every 64 instead of every 128");
  CHECK(with(0) == "no promotion instead of every 128");
}

TEST_CASE("A deviation that nothing explains is said to be unknown, with its place") {
  DeviceProducts one =
      computed(inputs("mma.sync", kBF16, kBF16, false, 16), Accumulator::sm90_bf16);
  one.d[16 * 8 + 9] ^= 1u;  // tile 1, row 1, column 1
  const DeviceFinding found = only(kHopper, one);
  CHECK(found.different == 1);
  CHECK(found.deviation == "of no known unit; 1023 of 1024 results are equal");
  CHECK(found.first.find("tile 1 row 1 column 1: ") == 0);
}

TEST_CASE("A card without a profile is compared with all of them") {
  const DeviceFacts unseen{"a card", 12, 1, 13000, 13000, "0.2.0"};
  const DeviceProducts asked = inputs("mma.sync", kE4M3, kE4M3, false, 128);
  const DeviceFinding known = only(unseen, computed(asked, Accumulator::sm89_mma_fp8));
  CHECK(known.unchecked == 1024);
  CHECK(known.deviation == "the bits of sm89_mma_fp8");
  Accumulator changed = Accumulator::sm90_wgmma_fp8;
  changed.group.fraction_bits = 17;
  CHECK(only(unseen, computed(asked, changed)).deviation ==
        "fraction_bits 17 instead of 13 of sm90_wgmma_fp8");
}

TEST_CASE("Another rule of conversion is named by its inputs") {
  const auto deviation =
      [](const FormatSpec& format,
         const std::function<std::uint32_t(std::uint32_t, std::uint32_t)>& rule) {
        DeviceConversions one = conversions(format);
        for (std::size_t i = 0; i < one.inputs.size(); ++i) {
          one.codes[i] = rule(one.inputs[i], one.codes[i]);
        }
        return check_device_pack({kHopper, {}, {one}}).at(0).deviation;
      };
  const auto encoded = [](numerics::Rounding rounding, numerics::Overflow overflow) {
    return [=](std::uint32_t x, std::uint32_t) {
      return numerics::encode(kE4M3, x, rounding, overflow);
    };
  };
  using numerics::Overflow;
  using numerics::Rounding;
  CHECK(deviation(kE4M3, encoded(Rounding::nearest, Overflow::saturate)).empty());
  CHECK(deviation(kE4M3, encoded(Rounding::ties_positive, Overflow::saturate)) ==
        "other codes of ties");
  const std::string special = deviation(kE4M3, encoded(Rounding::nearest, Overflow::special));
  CHECK(special.find("values above the largest finite code") != std::string::npos);
  CHECK(special.find(" ties") == std::string::npos);
  const std::string cut = deviation(kE4M3, encoded(Rounding::toward_zero, Overflow::saturate));
  CHECK(cut.find("values between codes") != std::string::npos);
  CHECK(deviation(kE5M2, [](std::uint32_t x, std::uint32_t code) {
          return (x & 0x7FFFFFFFu) > 0x7F800000u ? 0u : code;
        }) == "other codes of NaN");
}

TEST_CASE("Damaged packs are refused") {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "pack.safetensors";
  write_device_pack(path, hopper_pack());
  const std::string whole = read_file(path);
  const auto refuses = [&](const std::string& text) {
    write_file_atomically(path, text);
    CHECK_THROWS_AS(read_device_pack(path), Error);
  };
  for (std::size_t size = 0; size < whole.size(); size += 4001) refuses(whole.substr(0, size));
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"device-1", "device-2"},
      {"\\\"tiles\\\":8", "\\\"tiles\\\":7"},
      {"\\\"tiles\\\":8", "\\\"tiles\\\":-"},
      {"\\\"a\\\":\\\"e4m3fn\\\"", "\\\"a\\\":\\\"e4m3xx\\\""},
      {"\\\"to_f16\\\"", "\\\"to_f17\\\""},
      {"product0.d", "product0.e"},
      {"\\\"count\\\":640", "\\\"count\\\":641"}};
  for (const auto& [from, to] : changes) {
    CAPTURE(from, to);
    std::string text = whole;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    refuses(text.replace(at, from.size(), to));
  }
}

TEST_CASE("A tensor that no metadata describe is refused by name") {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "pack.safetensors";
  write_device_pack(path, hopper_pack());
  const std::string whole = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof length);
  const std::string data = whole.substr(sizeof length + length);
  std::string header = whole.substr(sizeof length, length);
  header.insert(1, "\"product9.a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" +
                       std::to_string(data.size()) + "," + std::to_string(data.size() + 1) + "]},");
  header.append((8 - header.size() % 8) % 8, ' ');
  length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  write_file_atomically(path, text + header + data + 'x');
  CHECK_THROWS_WITH(read_device_pack(path), Catch::Contains("tensor 'product9.a' belongs to no"));
}

/// The key of the metadata, or the tensor, for which a pack is refused; empty if it is read.
std::string refused(const DevicePack& pack) {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "pack.safetensors";
  write_device_pack(path, pack);
  try {
    (void)read_device_pack(path);
  } catch (const InputError& error) {
    CHECK(error.fields().where == path.string());
    CHECK(!error.fields().accepted.empty());
    return error.fields().key;
  }
  return "";
}

/// A pack of zeros, which every profile multiplies to zeros.
DevicePack zeros(const FormatSpec& a, const FormatSpec& b, std::int64_t k) {
  DeviceProducts one;
  one.instruction = "mma.sync";
  one.format_a = a;
  one.format_b = b;
  one.tiles = 1;
  one.rows = 16;
  one.columns = 8;
  one.k = k;
  return {kHopper, {one}, {}};
}

std::string refused(DevicePack pack, const std::function<void(DeviceProducts&)>& change) {
  DeviceProducts& one = pack.products.at(0);
  change(one);
  one.a.resize(static_cast<std::size_t>(one.tiles * one.rows * one.k));
  one.b.resize(static_cast<std::size_t>(one.tiles * one.columns * one.k));
  one.d.resize(static_cast<std::size_t>(one.results()));
  return refused(pack);
}

TEST_CASE("Packs of what no instruction computes are refused, by the field") {
  const auto as_it_is = [](DeviceProducts&) {};
  const DevicePack fp8 = zeros(kE4M3, kE5M2, 64);
  CHECK(refused(fp8, as_it_is).empty());
  CHECK(refused({kHopper, {}, {}}) == "products");
  CHECK(refused({kHopper, {}, {DeviceConversions{kE4M3, {}, {}}}}) == "count");
  CHECK(refused({kHopper, {}, {DeviceConversions{numerics::kFP32, {0}, {0}}}}) == "format");
  CHECK(refused({kHopper, {}, {DeviceConversions{kTF32, {0}, {0}}}}) == "format");
  CHECK(refused(zeros(numerics::kFP32, numerics::kFP32, 32), as_it_is) == "a");
  CHECK(refused(zeros(kE4M3, kBF16, 32), as_it_is) == "b");
  CHECK(refused(zeros(kBF16, kFP16, 32), as_it_is) == "b");
  const auto to_f16 = [](DeviceProducts& one) { one.to_f16 = true; };
  CHECK(refused(zeros(kTF32, kTF32, 32), to_f16) == "to_f16");
  CHECK(refused(zeros(kBF16, kBF16, 32), to_f16) == "to_f16");
  CHECK(refused(zeros(kFP16, kFP16, 32), to_f16).empty());
  CHECK(refused(fp8, to_f16).empty());
  const auto foreign = [](DeviceProducts& one) { one.instruction = "\x1b[31mfoo\n0 cases"; };
  CHECK(refused(fp8, foreign) == "instruction");
  using Member = std::int64_t DeviceProducts::*;
  struct Row {
    const char* key;
    Member member;
    std::vector<std::int64_t> values;
  };
  for (const Row& row :
       {Row{"tiles", &DeviceProducts::tiles, {0}}, Row{"rows", &DeviceProducts::rows, {0, 8}},
        Row{"columns", &DeviceProducts::columns, {0, 12}}, Row{"k", &DeviceProducts::k, {0, 1, 33}},
        Row{"promote", &DeviceProducts::promote, {1, 7, 96}}}) {
    for (const std::int64_t value : row.values) {
      CAPTURE(row.key, value);
      CHECK(refused(fp8, [&](DeviceProducts& one) { one.*row.member = value; }) == row.key);
    }
  }
}

TEST_CASE("An addend of promoted sums is refused, and so are promoted sums of FP16") {
  const auto promoted = [](DeviceProducts& one) { one.promote = 32; };
  const DevicePack pack = zeros(kE4M3, kE4M3, 64);
  CHECK(refused(pack, promoted).empty());
  CHECK(refused(pack, [](DeviceProducts& one) {
          one.promote = 32;
          one.c.assign(128, 0x3F800000u);
        }) == "product0.c");
  CHECK(refused(pack, [](DeviceProducts& one) {
          one.promote = 32;
          one.to_f16 = true;
        }) == "promote");
}

TEST_CASE("More elements than a pack may have are refused before they are read") {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "pack.safetensors";
  DevicePack pack = zeros(kE4M3, kE4M3, 64);
  DeviceProducts& one = pack.products[0];
  one.a.resize(1024);
  one.b.resize(512);
  one.d.resize(128);
  write_device_pack(path, pack);
  const std::string whole = read_file(path);
  // The tensors of the file stay small: the claim alone is refused.
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\\\"columns\\\":8", "\\\"columns\\\":800000"}, {"\\\"k\\\":64", "\\\"k\\\":640000"}}) {
    std::string text = whole;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    std::uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof length);
    length += to.size() - from.size();
    std::memcpy(text.data(), &length, sizeof length);
    write_file_atomically(path, text);
    if (from.find("columns") != std::string::npos) {
      CHECK_THROWS_WITH(read_device_pack(path), Catch::Contains("elements in the pack"));
    } else {
      CHECK_THROWS_WITH(read_device_pack(path), Catch::Contains("product0.a"));
    }
  }
}

TEST_CASE("Metadata that is no JSON is named") {
  const ScratchDirectory scratch;
  const auto path = scratch.path() / "pack.safetensors";
  write_safetensors(path, {{"fp8lab", "device-1"}, {"about", "{\"device\":"}}, {},
                    [](std::size_t) { return TensorBytes(); });
  CHECK_THROWS_WITH(read_device_pack(path), Catch::Contains("'about': malformed JSON at byte 11"));
}

TEST_CASE("One wrong result among zeros is named without a search through all the others") {
  DevicePack pack = zeros(kE4M3, kE4M3, 128);
  DeviceProducts& one = pack.products[0];
  one.tiles = 256;
  one.a.resize(static_cast<std::size_t>(one.tiles * one.rows * one.k));
  one.b.resize(static_cast<std::size_t>(one.tiles * one.columns * one.k));
  one.d.resize(static_cast<std::size_t>(one.results()));
  one.d.back() = 0x3F800000u;
  const auto begin = std::chrono::steady_clock::now();
  const DeviceFinding found = only(kHopper, one);
  CHECK(found.different == 1);
  CHECK(found.deviation == "of no known unit; 32767 of 32768 results are equal");
  // A search that compares all results with each of some 3000 candidates takes minutes.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
}

}  // namespace
