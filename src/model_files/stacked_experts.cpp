#include "src/model_files/stacked_experts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/model/weights/model_export.hpp"
#include "src/model/weights/weight_names.hpp"

namespace fp8lab {
namespace {

constexpr std::array<std::string_view, 6> kReadHidden = {
    "gate_up_proj", "gate_proj", "up_proj", "w1", "w3", "input_linear"};
constexpr std::array<std::string_view, 3> kWriteHidden = {"down_proj", "w2", "output_linear"};

/// The projection of a stack, "gate_up_proj" of "experts.gate_up_proj" and of
/// "experts.gate_up_proj.weight", and the name before it.
std::pair<std::string, std::string> projection_of(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  const std::string module =
      name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
  const std::size_t dot = module.rfind('.');
  if (dot == std::string::npos) return {module, {}};
  return {module.substr(dot + 1), module.substr(0, dot)};
}

template <std::size_t N>
bool is_one_of(const std::string& word, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::optional<ExpertOrder> own_order(const TensorHeader& header, std::int64_t hidden) {
  if (header.shape.size() != 3 || header.shape[1] == header.shape[2]) return std::nullopt;
  const std::string projection = projection_of(header.name).first;
  const bool reads = is_one_of(projection, kReadHidden);
  if (!reads && !is_one_of(projection, kWriteHidden)) return std::nullopt;
  const std::int64_t in = header.shape[reads ? 2 : 1], out = header.shape[reads ? 1 : 2];
  if (in == hidden) return ExpertOrder::out_in;
  if (out == hidden) return ExpertOrder::in_out;
  return std::nullopt;
}

/// One matrix of a stack of equal ones, or all of them below each other; or the transpose of one.
class MatrixOfStack : public ModelTensors {
 public:
  MatrixOfStack(const ModelTensors& stack, std::size_t index, std::int64_t first_matrix,
                std::int64_t matrices)
      : ModelTensors(stack.values_of()), stack_(stack), index_(index) {
    const TensorHeader& whole = stack.headers()[index];
    const std::int64_t rows = whole.shape[1], cols = whole.shape[2];
    first_ = first_matrix * rows * cols;
    headers_.push_back({whole.name, whole.type, {matrices * rows, cols}});
  }

  /// Turns the matrix, whose values are held from here on.
  void transpose() {
    TensorHeader& header = headers_.front();
    turned_.resize(static_cast<std::size_t>(header.size()));
    stack_.read(index_, first_, turned_);
    turned_ = transposed(turned_, header.shape[0], header.shape[1]);
    std::swap(header.shape[0], header.shape[1]);
  }

  void read(std::size_t, std::int64_t first, std::span<float> destination) const override {
    if (turned_.empty()) return stack_.read(index_, first_ + first, destination);
    std::copy_n(turned_.begin() + first, destination.size(), destination.begin());
  }

 private:
  const ModelTensors& stack_;
  std::size_t index_;
  std::int64_t first_;  ///< element of the stack
  std::vector<float> turned_;
};

/// The (cols, rows) transpose of row-major (rows, cols) codes of a byte.
TensorBytes transposed_codes(const TensorBytes& codes, std::int64_t rows, std::int64_t cols) {
  TensorBytes result(codes.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      result[static_cast<std::size_t>(c * rows + r)] =
          codes[static_cast<std::size_t>(r * cols + c)];
    }
  }
  return result;
}

void append(TensorBytes& to, const TensorBytes& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

bool is_router(const std::string& module) {
  return has_part(module, [](std::string_view part) { return part == "router"; });
}

bool is_stacked_experts(const TensorHeader& header) {
  const std::string module = module_of_tensor(header.name);
  if (is_router(module) || header.shape.size() < 2 || header.name.ends_with("bias")) return false;
  const bool is_of_experts = has_part(module, [](std::string_view part) {
    return part == "experts" || part.find("moe") != std::string_view::npos;
  });
  const bool is_matrix = header.shape.size() == 2;
  if (!is_matrix) return is_of_experts;
  return !header.name.ends_with(".weight") &&
         has_part(module, [](std::string_view part) { return part == "experts"; });
}

std::optional<ExpertOrder> order_of_experts(const TensorHeader& header,
                                            const std::vector<TensorHeader>& headers,
                                            const nlohmann::json& config) {
  const std::int64_t hidden = config_number(config_field(config, "text_config"), "hidden_size",
                                            config_number(config, "hidden_size", -1));
  if (hidden <= 0 || header.shape.size() != 3) return std::nullopt;
  if (const std::optional<ExpertOrder> own = own_order(header, hidden)) return own;
  if (header.shape[1] != header.shape[2]) return std::nullopt;
  const std::string layer = projection_of(header.name).second;
  for (const TensorHeader& other : headers) {
    if (projection_of(other.name).second != layer) continue;
    if (const std::optional<ExpertOrder> order = own_order(other, hidden)) return order;
  }
  return std::nullopt;
}

std::string refuse_stack(const WeightLayout& layout, std::optional<ExpertOrder> order) {
  const StoredScaleTile& tile = layout.tile;
  const bool is_square = tile.is_block() && tile.rows == tile.cols;
  if (layout.dialect == Dialect::compressed_tensors || layout.dialect == Dialect::modelopt) {
    return fmt::format("for which {} has no scales: it has a tensor for each expert",
                       dialect_name(layout.dialect));
  }
  if (tile.is_tensor()) return "for which one scale would be that of all of them";
  if (layout.dialect == Dialect::fine_grained && is_square) return {};
  if (!order) {
    return "of which neither config.json nor shapes and names say along which extent their "
           "products sum";
  }
  if (*order == ExpertOrder::out_in || tile.is_row()) return {};
  return fmt::format("as (experts, in, out), for which {} has no scales in the tile {}",
                     dialect_name(layout.dialect), tile_text(tile));
}

WeightLayout layout_of_stack(WeightLayout layout, std::optional<ExpertOrder> order) {
  if (layout.tile.is_row() && order == ExpertOrder::in_out) layout.tile = {0, 1};
  return layout;
}

std::vector<TensorHeader> stack_headers(const WeightLayout& layout, const std::string& weight,
                                        const std::vector<std::int64_t>& shape) {
  std::vector<TensorHeader> headers = layout_headers(layout, weight, {shape[1], shape[2]});
  for (std::size_t i = 0; i < 2; ++i) {
    headers[i].shape.insert(headers[i].shape.begin(), shape[0]);
  }
  return headers;
}

QuantizedBytes quantize_stack(Backend& backend, const ModelTensors& tensors, std::size_t index,
                              const QuantSpec& spec, const WeightLayout& layout,
                              std::uint64_t seed) {
  const std::vector<std::int64_t>& shape = tensors.headers()[index].shape;
  const std::int64_t experts = shape[0], height = std::max<std::int64_t>(spec.scale_tile().rows, 1);
  // Tiles of one row, and those that fill the rows of an expert, are of one expert anyway.
  const bool is_flat = layout.tile.rows == 1 && shape[1] % height == 0;
  if (!is_flat && layout.has_two_levels()) {
    throw InputError(
        {.noun = "tensor",
         .key = tensors.headers()[index].name,
         .reason = fmt::format("has {} rows an expert, no multiple of the {} of a tile", shape[1],
                               height),
         .accepted = "a quantizer whose tiles have one row"});
  }
  const std::int64_t at_once = is_flat ? experts : 1;
  WeightLayout of_matrix = layout;
  if (layout.tile.is_column()) of_matrix.tile = {1, 0};
  QuantizedBytes bytes;
  for (std::int64_t expert = 0; expert < experts; expert += at_once) {
    MatrixOfStack matrix(tensors, index, expert, at_once);
    if (layout.tile.is_column()) matrix.transpose();
    const std::size_t mark = backend.memory_mark();
    const QuantizedOperand operand = quantize_weight(
        backend, matrix, 0, spec, seed + index + (static_cast<std::uint64_t>(expert) << 32));
    const float amax = layout.has_two_levels() ? weight_amax(matrix, 0, spec) : 0.0f;
    QuantizedBytes own = quantized_bytes(backend, operand, of_matrix, amax);
    backend.release_to(mark);
    if (layout.tile.is_column()) own.codes = transposed_codes(own.codes, shape[2], shape[1]);
    append(bytes.codes, own.codes);
    append(bytes.scales, own.scales);
    append(bytes.global, own.global);
  }
  return bytes;
}

}  // namespace fp8lab
