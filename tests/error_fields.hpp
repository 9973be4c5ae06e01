// What a refusal says, field by field: tests ask for these, and the golden file for the words.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "emulation/base/input_error.hpp"

namespace fp8lab {

/// Returns the fields of the Error that `call` throws; without one the test fails.
template <class Call>
ErrorFields fields_thrown_by(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return fields_of(error);
  }
  FAIL("accepted");
  return {};
}

/// Checks `fields` against those of `expected` that are not empty: the noun and the key are equal,
/// the others contain it. The message is one line.
inline void check_fields(const ErrorFields& fields, const ErrorFields& expected) {
  INFO("message: " << render(fields));
  CHECK(render(fields).find('\n') == std::string::npos);
  if (!expected.noun.empty()) CHECK(fields.noun == expected.noun);
  if (!expected.key.empty()) CHECK(fields.key == expected.key);
  const auto contains = [](const std::string& text, const std::string& part) {
    INFO("expected: " << part << "\nin: " << text);
    CHECK(text.find(part) != std::string::npos);
  };
  contains(fields.where, expected.where);
  contains(fields.found, expected.found);
  contains(fields.nearest, expected.nearest);
  contains(fields.reason, expected.reason);
  contains(fields.accepted, expected.accepted);
  contains(fields.remedy, expected.remedy);
}

}  // namespace fp8lab
