// Errors that pass through a context: they get its place and keep their fields.
#pragma once

#include <string>

#include "emulation/base/input_error.hpp"

namespace fp8lab {

/// Returns make(). An Error that it throws becomes an InputError with the same fields and `place`
/// before its where.
template <class Make>
auto at_place(const std::string& place, const Make& make) -> decltype(make()) {
  try {
    return make();
  } catch (const Error& error) {
    throw InputError(in_place(place, error));
  }
}

}  // namespace fp8lab
