#include "src/validate/golden_file.hpp"

#include <fmt/format.h>

#include <span>

#include "emulation/base/input_error.hpp"
#include "src/io/files/input_file.hpp"

namespace fp8lab {
namespace {

constexpr std::uint64_t kTileRows = 64;
constexpr std::uint64_t kTileCols = 8;

int code_bytes(GoldenReader& reader, std::uint32_t format) {
  const numerics::FormatSpec* spec = golden_format(format);
  if (spec == nullptr) reader.fail("unknown format code " + std::to_string(format));
  return spec->bits() / 8;
}

MmaRecord read_mma_record(GoldenReader& reader) {
  MmaRecord record;
  record.name = reader.read_text(40);
  record.op = reader.read<std::uint32_t>();
  record.format_a = reader.read<std::uint32_t>();
  record.format_b = reader.read<std::uint32_t>();
  record.accumulator_bits = reader.read<std::uint32_t>();
  record.k = reader.read<std::uint32_t>();
  const auto tiles = reader.read<std::uint32_t>();
  const int bytes_a = code_bytes(reader, record.format_a);
  const int bytes_b = code_bytes(reader, record.format_b);
  if (record.accumulator_bits != 16 && record.accumulator_bits != 32) {
    reader.fail("accumulator of " + std::to_string(record.accumulator_bits) + " bits");
  }
  const int bytes_c = static_cast<int>(record.accumulator_bits / 8);
  for (std::uint32_t t = 0; t < tiles; ++t) {
    MmaTile tile;
    tile.a = reader.read_codes(kTileRows * record.k, bytes_a);
    tile.b = reader.read_codes(kTileCols * record.k, bytes_b);
    tile.c = reader.read_codes(kTileRows * kTileCols, bytes_c);
    tile.d = reader.read_codes(kTileRows * kTileCols, bytes_c);
    record.tiles.push_back(std::move(tile));
  }
  return record;
}

// Returns the number of scales per row that a mode stores; -1 for an unknown mode.
std::int64_t stored_scales(std::uint32_t mode, std::uint32_t format, std::uint32_t k) {
  if (golden_format(format)->bits() > 8) return 0;
  if (mode == 0 || mode == 3) return 1;
  if (mode == 4 || mode == 5) return (static_cast<std::int64_t>(k) + 127) / 128;
  return -1;
}

void check_scale_count(const GoldenReader& reader, std::uint32_t mode, std::uint32_t format,
                       std::uint32_t k, std::uint32_t stored) {
  const std::int64_t expected = stored_scales(mode, format, k);
  if (expected >= 0 && expected != static_cast<std::int64_t>(stored)) {
    reader.fail("scale mode " + std::to_string(mode) + " with K = " + std::to_string(k) +
                " stores " + std::to_string(expected) + " scales a row, the record says " +
                std::to_string(stored));
  }
}

void check_flag(const GoldenReader& reader, const char* name, std::uint32_t value) {
  if (value > 1) reader.fail(std::string(name) + " = " + std::to_string(value), "0 or 1");
}

void check_indices(const GoldenReader& reader, const char* name, std::uint32_t extent,
                   const std::vector<std::uint32_t>& indices) {
  for (const std::uint32_t index : indices) {
    if (index >= extent) {
      reader.fail(std::string(name) + " index " + std::to_string(index) + " outside " +
                  std::to_string(extent));
    }
  }
}

GemmRecord read_gemm_record(GoldenReader& reader) {
  GemmRecord record;
  for (std::uint32_t* field : {&record.m, &record.n, &record.k, &record.format_a, &record.format_b,
                               &record.out, &record.scale_mode_a, &record.scale_mode_b,
                               &record.fast, &record.split_k, &record.has_bias}) {
    *field = reader.read<std::uint32_t>();
  }
  const auto rows = reader.read<std::uint32_t>();
  const auto cols = reader.read<std::uint32_t>();
  record.scales_a = reader.read<std::uint32_t>();
  record.scales_b = reader.read<std::uint32_t>();
  record.alpha = reader.read<float>();
  record.beta = reader.read<float>();
  const auto has_c = reader.read<std::uint32_t>();
  record.output_scale = reader.read<float>();
  reader.read<std::uint32_t>();  // reserved
  record.kernel = reader.read_text(112);

  const int bytes_a = code_bytes(reader, record.format_a);
  const int bytes_b = code_bytes(reader, record.format_b);
  if (record.k == 0) reader.fail("K = 0");
  if (record.split_k == 0) reader.fail("split factor 0");
  check_flag(reader, "fast", record.fast);
  check_flag(reader, "bias", record.has_bias);
  check_flag(reader, "hasC", has_c);
  check_scale_count(reader, record.scale_mode_a, record.format_a, record.k, record.scales_a);
  check_scale_count(reader, record.scale_mode_b, record.format_b, record.k, record.scales_b);

  record.rows = reader.read_many<std::uint32_t>(rows);
  record.cols = reader.read_many<std::uint32_t>(cols);
  check_indices(reader, "row", record.m, record.rows);
  check_indices(reader, "column", record.n, record.cols);
  record.a = reader.read_codes(std::uint64_t{rows} * record.k, bytes_a);
  record.b = reader.read_codes(std::uint64_t{cols} * record.k, bytes_b);
  record.sa = reader.read_many<float>(std::uint64_t{rows} * record.scales_a);
  record.sb = reader.read_many<float>(std::uint64_t{cols} * record.scales_b);
  const std::uint64_t outputs = std::uint64_t{rows} * cols;
  if (has_c != 0) record.c = reader.read_many<float>(outputs);
  if (record.has_bias != 0) record.bias = reader.read_many<float>(rows);
  record.d = reader.read_many<std::uint32_t>(outputs);
  return record;
}

template <class Record>
void read_records(const std::filesystem::path& path, const char* magic,
                  Record (*read_record)(GoldenReader&),
                  const std::function<void(const Record&)>& visit,
                  const std::function<void(double)>& progress) {
  GoldenReader reader(path);
  reader.expect_magic(magic);
  reader.expect_version();
  while (!reader.at_end()) {
    visit(read_record(reader));
    if (progress) {
      progress(static_cast<double>(reader.offset()) / static_cast<double>(reader.size()));
    }
  }
}

}  // namespace

GoldenReader::GoldenReader(const std::filesystem::path& path) : path_(path.string()) {
  const InputFile file(path);
  bytes_.resize(static_cast<std::size_t>(file.size()));
  file.read(0, std::as_writable_bytes(std::span(bytes_)));
}

void GoldenReader::fail(const std::string& reason, const std::string& accepted) const {
  throw InputError({.where = fmt::format("{}: offset {}", path_, offset_),
                    .reason = reason,
                    .accepted = accepted});
}

const std::uint8_t* GoldenReader::take(std::uint64_t count, std::uint64_t bytes_each) {
  const std::uint64_t left = bytes_.size() - offset_;
  if (count > left / bytes_each) {
    fail("truncated: " + std::to_string(count) + " elements of " + std::to_string(bytes_each) +
         " bytes expected, " + std::to_string(left) + " bytes left");
  }
  const std::uint8_t* start = bytes_.data() + offset_;
  offset_ += count * bytes_each;
  return start;
}

void GoldenReader::expect_magic(const char* magic) {
  const std::uint8_t* found = take(4, 1);
  if (std::memcmp(found, magic, 4) != 0) {
    offset_ -= 4;
    fail(std::string("does not start with \"") + magic + "\"");
  }
}

void GoldenReader::expect_version() {
  const auto version = read<std::uint32_t>();
  if (version != 1) fail("version " + std::to_string(version), "1");
}

std::vector<std::uint32_t> GoldenReader::read_codes(std::uint64_t count, int bytes) {
  const auto step = static_cast<std::uint64_t>(bytes);
  const std::uint8_t* source = take(count, step);
  std::vector<std::uint32_t> codes(count, 0);
  for (std::uint64_t i = 0; i < count; ++i) std::memcpy(&codes[i], source + i * step, step);
  return codes;
}

std::string GoldenReader::read_text(std::size_t length) {
  const auto* text = reinterpret_cast<const char*>(take(length, 1));
  return {text, strnlen(text, length)};
}

const numerics::FormatSpec* golden_format(std::uint32_t code) {
  static constexpr numerics::FormatSpec kFormats[] = {numerics::kE4M3, numerics::kE5M2,
                                                      numerics::kBF16, numerics::kFP16};
  return code < 4 ? &kFormats[code] : nullptr;
}

void read_mma_records(const std::filesystem::path& path,
                      const std::function<void(const MmaRecord&)>& visit,
                      const std::function<void(double)>& progress) {
  read_records<MmaRecord>(path, "MMAG", read_mma_record, visit, progress);
}

void read_gemm_records(const std::filesystem::path& path,
                       const std::function<void(const GemmRecord&)>& visit,
                       const std::function<void(double)>& progress) {
  read_records<GemmRecord>(path, "GEMM", read_gemm_record, visit, progress);
}

}  // namespace fp8lab
