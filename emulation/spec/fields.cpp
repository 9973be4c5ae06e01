#include "emulation/spec/fields.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace fp8lab::fields {
namespace {

std::string range(const char* kind, const std::string& least, const std::string& most,
                  bool bounded) {
  return bounded ? fmt::format("{} from {} to {}", kind, least, most)
                 : fmt::format("{} of at least {}", kind, least);
}

}  // namespace

std::string integers(std::int64_t least, std::int64_t most) {
  return range("an integer", std::to_string(least), std::to_string(most),
               most != kNoLargestInteger);
}

std::string numbers(double least, double most) {
  return range("a number", fmt::format("{}", least), fmt::format("{}", most),
               most != kNoLargestNumber);
}

std::string listed(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<std::int64_t> integer_in(const FieldValue& value, std::int64_t least,
                                       std::int64_t most) {
  const std::int64_t* const given = std::get_if<std::int64_t>(&value);
  if (given == nullptr || *given < least || *given > most) return std::nullopt;
  return *given;
}

std::optional<double> number_in(const FieldValue& value, double least, double most) {
  double given = 0.0;
  if (const std::int64_t* const integer = std::get_if<std::int64_t>(&value)) {
    given = static_cast<double>(*integer);
  } else if (const double* const number = std::get_if<double>(&value)) {
    given = *number;
  } else {
    return std::nullopt;
  }
  const bool within = given >= least && given <= most && std::isfinite(given);
  return within ? std::optional(given) : std::nullopt;
}

double shortest_double(float value) {
  const std::string digits = fmt::format("{}", value);
  double shortest = 0.0;
  std::from_chars(digits.data(), digits.data() + digits.size(), shortest);
  return static_cast<float>(shortest) == value ? shortest : static_cast<double>(value);
}

}  // namespace fp8lab::fields
