#include "emulation/spec/transform.hpp"

#include <charconv>

#include <fmt/format.h>

#include "emulation/numerics/hadamard.hpp"

namespace fp8lab {
namespace {

/// Removes and returns the text before the next colon, and removes the colon.
std::string_view take_part(std::string_view& text) {
  const std::size_t colon = text.find(':');
  const std::string_view part = text.substr(0, colon);
  text.remove_prefix(colon == std::string_view::npos ? text.size() : colon + 1);
  return part;
}

template <class Number>
bool read_number(std::string_view text, Number& value) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  return error == std::errc{} && end == last;
}

bool read_block(std::string_view text, Transform& transform) {
  if (text == "full") return true;
  return read_number(text, transform.block) && transform.block >= 2 &&
         transform.block <= Transform::kMaxBlock && numerics::hadamard_core(transform.block) != 0;
}

bool read_signs(std::string_view text, Transform& transform) {
  if (text == "drawn") {
    transform.signs = SignSource::drawn;
    return true;
  }
  transform.signs = SignSource::fixed;
  transform.pattern_length = static_cast<int>(text.size());
  const bool fits = !text.empty() && text.size() <= Transform::kMaxPattern &&
                    transform.block % transform.pattern_length == 0;
  if (!fits || text.find_first_not_of("+-") != std::string_view::npos) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '-') transform.negative_signs[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  return true;
}

std::optional<Transform> read_hadamard(std::string_view text) {
  Transform transform;
  transform.kind = TransformKind::hadamard;
  if (!read_block(take_part(text), transform)) return std::nullopt;
  if (text.empty()) return transform;
  if (!read_signs(take_part(text), transform)) return std::nullopt;
  if (text.empty()) return transform;
  transform.side = SignSide::after;
  return text == "after" ? std::optional(transform) : std::nullopt;
}

std::optional<Transform> read_left(std::string_view text) {
  if (take_part(text) != "hadamard") return std::nullopt;
  std::optional<Transform> transform = read_hadamard(text);
  if (transform) transform->left = true;
  return transform;
}

std::optional<Transform> read_smoothing(std::string_view text) {
  Transform transform;
  transform.kind = TransformKind::smoothing;
  const bool read = read_number(take_part(text), transform.strength);
  if (!read || !(transform.strength >= 0.0f && transform.strength <= 1.0f)) return std::nullopt;
  transform.is_static = text == "static";
  return text.empty() || transform.is_static ? std::optional(transform) : std::nullopt;
}

std::optional<Transform> read_clamp(std::string_view text) {
  Transform transform;
  transform.kind = TransformKind::clamp;
  const bool read = read_number(take_part(text), transform.quantile);
  if (!read || !(transform.quantile > 0.5 && transform.quantile <= 1.0)) return std::nullopt;
  if (text.empty()) return transform;
  if (take_part(text) != "compensated") return std::nullopt;
  transform.compensation = text.empty() ? Compensation::original : Compensation::quantized;
  return text.empty() || text == "quantized" ? std::optional(transform) : std::nullopt;
}

}  // namespace

std::string transform_name(const Transform& transform) {
  if (!transform) return "none";
  if (transform.is_expansion()) return "expand";
  if (transform.is_smoothing()) {
    return fmt::format("smooth:{}{}", transform.strength, transform.is_static ? ":static" : "");
  }
  if (transform.is_clamp()) {
    constexpr std::string_view kWords[] = {"", ":compensated", ":compensated:quantized"};
    return fmt::format("clamp:{}{}", transform.quantile,
                       kWords[static_cast<std::size_t>(transform.compensation)]);
  }
  std::string name = transform.left ? "left:hadamard:" : "hadamard:";
  name += transform.block == 0 ? "full" : std::to_string(transform.block);
  if (transform.signs == SignSource::none) return name;
  name += transform.signs == SignSource::drawn ? ":drawn" : ":";
  for (int i = 0; i < transform.pattern_length; ++i) name += transform.is_negative(i) ? '-' : '+';
  return transform.side == SignSide::after ? name + ":after" : name;
}

std::optional<Transform> transform_from_name(std::string_view name) {
  if (name == "none") return Transform{};
  if (name == "expand") return Transform{.kind = TransformKind::expansion};
  if (name.empty() || name.back() == ':') return std::nullopt;
  const std::string_view kind = take_part(name);
  if (kind == "hadamard") return read_hadamard(name);
  if (kind == "left") return read_left(name);
  if (kind == "clamp") return read_clamp(name);
  return kind == "smooth" ? read_smoothing(name) : std::nullopt;
}

std::string transform_refusal(const Transform& transform, std::int64_t rows, std::int64_t k) {
  if (transform.kind != TransformKind::hadamard) return "";
  const std::string name = transform_name(transform);
  const char* const axis = transform.left ? "rows" : "K";
  const std::int64_t length = transform.left ? rows : k;
  if (transform.block > 0) {
    if (length % transform.block == 0) return "";
    return fmt::format("transform {} needs {} to be a multiple of {}, {} = {}", name, axis,
                       transform.block, axis, length);
  }
  if (numerics::hadamard_core(length) == 0) {
    return fmt::format(
        "transform {}: no Hadamard matrix of order {} = {} is known here; accepted: a power of "
        "two, or one times the order of a Paley or Williamson matrix (12, 20, 24, 28, 36, ...) of "
        "at most {}",
        name, axis, length, numerics::kMaxHadamardCore);
  }
  if (transform.signs == SignSource::fixed && length % transform.pattern_length != 0) {
    return fmt::format("transform {}: its {} signs do not divide {} = {}", name,
                       transform.pattern_length, axis, length);
  }
  return "";
}

}  // namespace fp8lab
