#include "src/replay/recorded_gemm.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"
#include "src/io/tensors/safetensors.hpp"

namespace fp8lab {
namespace {

constexpr const char* kRecordSchema = "gemm-1";

/// The file with messages that name it.
class Record {
 public:
  explicit Record(const std::filesystem::path& path) : file_(path) {
    const auto& metadata = file_.metadata();
    const auto schema = metadata.find("fp8lab");
    if (schema == metadata.end() || schema->second != kRecordSchema) {
      throw InputError(
          {.where = file_.path(),
           .reason =
               fmt::format("not a GEMM of fp8lab.recorder (metadata fp8lab = {})", kRecordSchema)});
    }
  }

  const std::string& word(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) fail(key, {.reason = "is missing from the metadata"});
    return found->second;
  }

  std::int64_t number(const std::string& key) const {
    const std::string& text = word(key);
    std::int64_t value = 0;
    for (const char digit : text) {
      if (digit < '0' || digit > '9' || value > (std::int64_t{1} << 40)) {
        fail(key, {.found = quoted_word(text), .accepted = "a positive integer"});
      }
      value = 10 * value + (digit - '0');
    }
    if (value == 0) fail(key, {.found = quoted_word(text), .accepted = "a positive integer"});
    return value;
  }

  numerics::FormatSpec format(const std::string& key) const {
    const std::optional<numerics::FormatSpec> found = format_by_name(word(key));
    if (!found || found->bits() > 8 || !found->has_sign) {
      fail(key, {.found = quoted_word(word(key)), .accepted = "a format of at most 8 bits"});
    }
    return *found;
  }

  const StoredTensor* find(const std::string& name) const {
    read_.insert(name);
    return file_.find(name);
  }

  /// Throws for a tensor that nothing asked for: it would take no part in the result.
  void require_all_read() const {
    for (const StoredTensor& tensor : file_.tensors()) {
      if (read_.count(tensor.name) != 0) continue;
      fail(tensor.name, {.reason = "is no tensor of a recorded GEMM",
                         .accepted = fmt::format("{}", fmt::join(read_, ", "))});
    }
  }

  const StoredTensor& matrix(const std::string& name, StoredType type) const {
    const StoredTensor& tensor = at(name);
    if (tensor.type != type || tensor.shape.size() != 2 || tensor.size() == 0) {
      fail(name, {.found = shape_text(tensor),
                  .accepted = fmt::format("a matrix of {}", stored_name(type))});
    }
    return tensor;
  }

  std::vector<float> floats(const std::string& name) const {
    const StoredTensor& tensor = at(name);
    if (tensor.type != StoredType::f32) {
      fail(name, {.found = std::string(stored_name(tensor.type)), .accepted = "F32"});
    }
    std::vector<float> values(static_cast<std::size_t>(tensor.size()));
    read_elements(tensor, 0, values);
    return values;
  }

  /// Throws InputError with `fields`, and with the file and `key`.
  [[noreturn]] void fail(const std::string& key, ErrorFields fields) const {
    fields.where = file_.path();
    fields.key = key;
    throw InputError(std::move(fields));
  }

 private:
  const StoredTensor& at(const std::string& name) const {
    read_.insert(name);
    return file_.at(name);
  }

  SafetensorsFile file_;
  mutable std::set<std::string> read_;  ///< names of tensors that were asked for
};

RecordedOperand read_operand(const Record& record, const std::string& name) {
  RecordedOperand operand;
  operand.format = record.format("format_" + name);
  const std::string& tile = record.word("tile_" + name);
  const std::optional<TileShape> shape = tile_from_name(tile);
  if (!shape) record.fail("tile_" + name, {.found = quoted_word(tile), .accepted = "a tile"});
  operand.tile = *shape;
  const StoredTensor& codes = record.matrix(name, StoredType::u8);
  operand.rows = codes.shape[0];
  operand.k = codes.shape[1];
  const TensorBytes bytes = read_bytes(codes);
  operand.codes.resize(bytes.size());
  std::memcpy(operand.codes.data(), bytes.data(), bytes.size());
  for (const std::uint8_t code : operand.codes) {
    if (code >> operand.format.bits() != 0) {
      record.fail(name, {.reason = fmt::format("has the code {:#x}, which is none of {}", code,
                                               format_name(operand.format))});
    }
  }
  const StoredTensor& scales = record.matrix("scale_" + name, StoredType::f32);
  operand.scale_rows = scales.shape[0];
  operand.scale_cols = scales.shape[1];
  operand.scales = record.floats("scale_" + name);
  return operand;
}

void read_result(const Record& record, RecordedGemm& gemm) {
  const StoredTensor* d = record.find("d");
  if (d == nullptr) record.fail("d", {.reason = "is missing"});
  const std::vector<std::int64_t> shape{gemm.a.rows, gemm.b.rows};
  if (d->shape != shape) {
    record.fail("d",
                {.found = shape_text(*d),
                 .reason = fmt::format("; the operands give ({}, {})", gemm.a.rows, gemm.b.rows)});
  }
  switch (d->type) {
    case StoredType::f32: gemm.d_format = numerics::kFP32; break;
    case StoredType::bf16: gemm.d_format = numerics::kBF16; break;
    case StoredType::f16: gemm.d_format = numerics::kFP16; break;
    case StoredType::u8:
      gemm.d_format = record.word("out") == "float8_e5m2" ? numerics::kE5M2 : numerics::kE4M3;
      break;
    default: record.fail("d", {.found = shape_text(*d), .accepted = "F32, BF16, F16, U8"});
  }
  const TensorBytes bytes = read_bytes(*d);
  const std::size_t width = size_of(d->type);
  gemm.d.assign(static_cast<std::size_t>(d->size()), 0);
  for (std::size_t i = 0; i < gemm.d.size(); ++i) {
    std::memcpy(&gemm.d[i], bytes.data() + i * width, width);
  }
}

void check_extents(const Record& record, const RecordedGemm& gemm) {
  const auto check = [&](const RecordedOperand& operand, std::int64_t rows, const char* name) {
    if (operand.k != gemm.k || operand.rows > rows) {
      record.fail(name, {.found = fmt::format("({}, {})", operand.rows, operand.k),
                         .reason = fmt::format("in a GEMM of {} rows and K = {}", rows, gemm.k)});
    }
    const auto tiles = [](std::int64_t extent, std::int64_t tile) {
      return tile == 0 ? 1 : (extent + tile - 1) / tile;
    };
    const std::int64_t high = tiles(rows, operand.tile.rows);
    const std::int64_t wide = tiles(gemm.k, operand.tile.cols);
    if (operand.scale_rows != high || operand.scale_cols != wide) {
      record.fail(
          fmt::format("scale_{}", name),
          {.found = fmt::format("({}, {})", operand.scale_rows, operand.scale_cols),
           .reason = fmt::format("; tile {} needs ({}, {})", tile_name(operand.tile), high, wide)});
    }
  };
  check(gemm.a, gemm.m, "a");
  check(gemm.b, gemm.n, "b");
}

std::vector<std::array<float, 2>> earlier_scales(const Record& record) {
  const std::string key = "earlier_scales";
  const auto json = nlohmann::json::parse(record.word(key), nullptr, false);
  std::vector<std::array<float, 2>> scales;
  if (!json.is_array()) record.fail(key, {.found = "no list"});
  for (const auto& pair : json) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) {
      record.fail(key, {.found = "no list of pairs of numbers"});
    }
    scales.push_back({pair[0].get<float>(), pair[1].get<float>()});
  }
  return scales;
}

}  // namespace

std::size_t RecordedOperand::scale_index(std::int64_t row, std::int64_t column) const {
  const std::int64_t tile_row = tile.rows == 0 ? 0 : row / tile.rows;
  const std::int64_t tile_col = tile.cols == 0 ? 0 : column / tile.cols;
  return static_cast<std::size_t>(tile_row * scale_cols + tile_col);
}

RecordedGemm read_recorded_gemm(const std::filesystem::path& path) {
  const Record record(path);
  RecordedGemm gemm;
  gemm.file = path.filename().string();
  gemm.api = record.word("api");
  gemm.device = record.word("device");
  gemm.step = record.word("step");
  gemm.m = record.number("m");
  gemm.n = record.number("n");
  gemm.k = record.number("k");
  gemm.fast = record.word("fast") == "true";
  gemm.a = read_operand(record, "a");
  gemm.b = read_operand(record, "b");
  check_extents(record, gemm);
  read_result(record, gemm);
  if (record.find("bias") != nullptr) {
    gemm.bias = record.floats("bias");
    if (static_cast<std::int64_t>(gemm.bias.size()) != gemm.b.rows) {
      record.fail("bias", {.reason = "has another number of elements than D has columns"});
    }
  }
  if (record.find("d_scale") != nullptr) {
    const std::vector<float> factor = record.floats("d_scale");
    if (factor.size() != 1) record.fail("d_scale", {.reason = "is not one number"});
    gemm.d_scale = factor.front();
  }
  gemm.earlier_scales = earlier_scales(record);
  record.require_all_read();
  return gemm;
}

}  // namespace fp8lab
