#include "src/interface/keys.hpp"

#include <cstdint>
#include <utility>
#include <variant>

#include "emulation/base/input_error.hpp"
#include "src/interface/guard.hpp"

namespace fp8lab::interface {

FieldValue field_value(const fp8lab_key& key) {
  const std::string name = text_of(key.name, "the name of a key");
  switch (key.value.kind) {
    case FP8LAB_TEXT: return text_of(key.value.text, key.name);
    case FP8LAB_INTEGER: return std::int64_t{key.value.integer};
    case FP8LAB_REAL: return key.value.real;
    default: throw InputError({.key = name, .reason = "is neither a word nor a number"});
  }
}

fp8lab_value value_of(const FieldValue& value) {
  fp8lab_value result{};
  if (const auto* text = std::get_if<std::string>(&value)) {
    result.kind = FP8LAB_TEXT;
    result.text = kept_text(*text);
  } else if (const auto* number = std::get_if<double>(&value)) {
    result.kind = FP8LAB_REAL;
    result.real = *number;
  } else {
    result.kind = FP8LAB_INTEGER;
    result.integer = std::get<std::int64_t>(value);
  }
  return result;
}

const char* kept_text(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace fp8lab::interface
