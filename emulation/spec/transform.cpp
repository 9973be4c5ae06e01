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

bool read_block(std::string_view text, Hadamard& hadamard) {
  if (text == "full") return true;
  return read_number(text, hadamard.block) && hadamard.block >= 2 &&
         hadamard.block <= Hadamard::kMaxBlock && numerics::hadamard_core(hadamard.block) != 0;
}

bool read_signs(std::string_view text, Hadamard& hadamard) {
  if (text == "drawn") {
    hadamard.signs = SignSource::drawn;
    return true;
  }
  hadamard.signs = SignSource::fixed;
  hadamard.pattern_length = static_cast<int>(text.size());
  const bool fits = !text.empty() && text.size() <= Hadamard::kMaxPattern &&
                    hadamard.block % hadamard.pattern_length == 0;
  if (!fits || text.find_first_not_of("+-") != std::string_view::npos) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '-') hadamard.negative_signs[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  return true;
}

std::optional<Hadamard> read_hadamard(std::string_view text) {
  Hadamard hadamard;
  if (!read_block(take_part(text), hadamard)) return std::nullopt;
  if (text.empty()) return hadamard;
  if (!read_signs(take_part(text), hadamard)) return std::nullopt;
  if (text.empty()) return hadamard;
  hadamard.side = SignSide::after;
  return text == "after" ? std::optional(hadamard) : std::nullopt;
}

std::optional<Hadamard> read_left(std::string_view text) {
  if (take_part(text) != "hadamard") return std::nullopt;
  std::optional<Hadamard> hadamard = read_hadamard(text);
  if (hadamard) hadamard->left = true;
  return hadamard;
}

std::optional<Smoothing> read_smoothing(std::string_view text) {
  Smoothing smoothing;
  const bool read = read_number(take_part(text), smoothing.strength);
  if (!read || !(smoothing.strength >= 0.0f && smoothing.strength <= 1.0f)) return std::nullopt;
  smoothing.is_static = text == "static";
  return text.empty() || smoothing.is_static ? std::optional(smoothing) : std::nullopt;
}

std::optional<Clamp> read_clamp(std::string_view text) {
  Clamp clamp;
  const bool read = read_number(take_part(text), clamp.quantile);
  if (!read || !(clamp.quantile > 0.5 && clamp.quantile <= 1.0)) return std::nullopt;
  if (text.empty()) return clamp;
  if (take_part(text) != "compensated") return std::nullopt;
  clamp.compensation = text.empty() ? Compensation::original : Compensation::quantized;
  return text.empty() || text == "quantized" ? std::optional(clamp) : std::nullopt;
}

template <class Kind>
std::optional<Transform> transform_of(const std::optional<Kind>& kind) {
  return kind ? std::optional(Transform{*kind}) : std::nullopt;
}

std::string name_of(const NoTransform&) { return "none"; }

std::string name_of(const Hadamard& hadamard) {
  std::string name = hadamard.left ? "left:hadamard:" : "hadamard:";
  name += hadamard.block == 0 ? "full" : std::to_string(hadamard.block);
  if (hadamard.signs == SignSource::none) return name;
  name += hadamard.signs == SignSource::drawn ? ":drawn" : ":";
  for (int i = 0; i < hadamard.pattern_length; ++i) name += hadamard.is_negative(i) ? '-' : '+';
  return hadamard.side == SignSide::after ? name + ":after" : name;
}

std::string name_of(const Smoothing& smoothing) {
  return fmt::format("smooth:{}{}", smoothing.strength, smoothing.is_static ? ":static" : "");
}

std::string name_of(const RangeExpansion&) { return "expand"; }

std::string name_of(const Clamp& clamp) {
  constexpr std::string_view kWords[] = {"", ":compensated", ":compensated:quantized"};
  return fmt::format("clamp:{}{}", clamp.quantile,
                     kWords[static_cast<std::size_t>(clamp.compensation)]);
}

}  // namespace

std::string transform_name(const Transform& transform) {
  return std::visit([](const auto& kind) { return name_of(kind); }, transform.kind);
}

std::optional<Transform> transform_from_name(std::string_view name) {
  if (name == "none") return Transform{};
  if (name == "expand") return Transform{RangeExpansion{}};
  if (name.empty() || name.back() == ':') return std::nullopt;
  const std::string_view kind = take_part(name);
  if (kind == "hadamard") return transform_of(read_hadamard(name));
  if (kind == "left") return transform_of(read_left(name));
  if (kind == "clamp") return transform_of(read_clamp(name));
  return kind == "smooth" ? transform_of(read_smoothing(name)) : std::nullopt;
}

std::string transform_refusal(const Transform& transform, std::int64_t rows, std::int64_t k) {
  const auto* const hadamard = transform.as<Hadamard>();
  if (hadamard == nullptr) return "";
  const std::string name = transform_name(transform);
  const char* const axis = hadamard->left ? "rows" : "K";
  const std::int64_t length = hadamard->left ? rows : k;
  if (hadamard->block > 0) {
    if (length % hadamard->block == 0) return "";
    return fmt::format("transform {} needs {} to be a multiple of {}, {} = {}", name, axis,
                       hadamard->block, axis, length);
  }
  if (numerics::hadamard_core(length) == 0) {
    return fmt::format(
        "transform {}: no Hadamard matrix of order {} = {} is known here; accepted: a power of "
        "two, or one times the order of a Paley or Williamson matrix (12, 20, 24, 28, 36, ...) of "
        "at most {}",
        name, axis, length, numerics::kMaxHadamardCore);
  }
  if (hadamard->signs == SignSource::fixed && length % hadamard->pattern_length != 0) {
    return fmt::format("transform {}: its {} signs do not divide {} = {}", name,
                       hadamard->pattern_length, axis, length);
  }
  return "";
}

}  // namespace fp8lab
