#include "src/model/weights/fp8_storage.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/json_fields.hpp"
#include "src/model/dialects/quantization_claim.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargestBlock = 1 << 20;
/// Names the way to formats that only the converter reads.
constexpr const char* kConvertFirst = "first: fp8lab convert SOURCE DIR --to bf16";

std::int64_t tiles(std::int64_t extent, std::int64_t tile) {
  return tile == 0 ? 1 : (extent + tile - 1) / tile;
}

std::optional<StoredScaleTile> read_block(JsonFields& fields, const std::string& key) {
  const json& block = fields.value(key);
  if (block.is_null()) return std::nullopt;
  const auto is_size = [](const json& size) {
    return size.is_number_unsigned() && size.get<std::uint64_t>() - 1 < kLargestBlock;
  };
  StoredScaleTile tile;
  if (block.is_array() && block.size() == 2 && is_size(block[0]) && is_size(block[1])) {
    tile = {block[0].get<std::int64_t>(), block[1].get<std::int64_t>()};
  } else {
    fields.fail(key, {.found = block.dump().substr(0, 80),
                      .accepted = fmt::format("two sizes from 1 to {}", kLargestBlock)});
  }
  return tile;
}

std::optional<StoredScaleTile> read_fp8_method(JsonFields& fields) {
  fields.require("fmt", "e4m3", kConvertFirst);
  return read_block(fields, "weight_block_size");
}

/// All groups must hold FP8 weights, and blocks of one size.
std::optional<StoredScaleTile> read_compressed_tensors(const json& groups,
                                                       const std::string& where) {
  std::optional<StoredScaleTile> blocks;
  for (const auto& [name, group] : groups.items()) {
    const std::string place = fmt::format("{}.{}", where, name.substr(0, 80));
    JsonFields fields(group, place);
    JsonFields weights(fields.value("weights"), place + ".weights");
    weights.require("num_bits", 8, kConvertFirst);
    weights.require("type", "float", kConvertFirst);
    weights.require("symmetric", true, kConvertFirst);
    const std::string strategy = weights.text("strategy", "tensor");
    if (strategy != "tensor" && strategy != "channel" && strategy != "block") {
      weights.fail("strategy", {.found = fmt::format("'{}'", strategy),
                                .accepted = "tensor, channel, block",
                                .remedy = kConvertFirst});
    }
    const std::optional<StoredScaleTile> block = read_block(weights, "block_structure");
    if (block && blocks && *block != *blocks) {
      weights.fail("block_structure", {.reason = "differs from that of another group"});
    }
    if (block) blocks = block;
  }
  return blocks;
}

}  // namespace

std::optional<StoredScaleTile> read_quantization_config(const json& config,
                                                        const std::string& origin) {
  const std::string where = origin + ": quantization_config";
  JsonFields fields(config, where);
  for (const std::string& setting : unread_settings(config)) {
    throw InputError({.where = where, .reason = setting + ", which nothing here applies"});
  }
  const std::string method = fields.text("quant_method", "");
  if (method == "fp8") return read_fp8_method(fields);
  if (method == "compressed-tensors") {
    return read_compressed_tensors(fields.value("config_groups"), where + ".config_groups");
  }
  const bool is_convertible = method == "modelopt" || method == "torchao";
  fields.fail("quant_method", {.found = fmt::format("'{}'", method.substr(0, 80)),
                               .accepted = "fp8, compressed-tensors",
                               .remedy = is_convertible ? kConvertFirst : ""});
}

StoredScaleTile tile_of_scales(const TensorHeader& weight, const TensorHeader& scale,
                               const std::optional<StoredScaleTile>& blocks,
                               const std::string& origin) {
  if (scale.size() == 1) return {0, 0};
  const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
  using Shape = std::vector<std::int64_t>;
  if (scale.shape == Shape{rows, 1} || scale.shape == Shape{rows}) return {1, 0};
  if (blocks && scale.shape == Shape{tiles(rows, blocks->rows), tiles(cols, blocks->cols)}) {
    return *blocks;
  }
  throw InputError(
      {.where = origin,
       .noun = "tensor",
       .key = scale.name,
       .found = shape_text(scale),
       .reason = fmt::format(
           ", which fits weights of ({}, {}) neither as one scale nor as one a row nor as {}", rows,
           cols,
           blocks ? fmt::format("blocks of {}x{}", blocks->rows, blocks->cols)
                  : "blocks, whose size no quantization_config names")});
}

}  // namespace fp8lab
