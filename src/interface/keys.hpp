// Keys and values of fp8lab.h as those of the tables of fields.
#pragma once

#include <cstddef>
#include <string>

#include "emulation/spec/fields.hpp"
#include "src/config/tables/run_fields.hpp"
#include "src/interface/fp8lab.h"

namespace fp8lab::interface {

/// Returns the value of a key. Throws Error that names the key if its kind is unknown.
FieldValue field_value(const fp8lab_key& key);

/// Returns a value of a field. A text stays valid until the thread's next call.
fp8lab_value value_of(const FieldValue& value);

/// Returns `text` with the lifetime of texts of fp8lab.h: until the thread's next call.
const char* kept_text(std::string text);

/// Sets the members that the keys name. Throws Error that begins with `where`.
template <class S>
void set_keys(const Fields<S>& fields, S& object, const fp8lab_key* keys, std::size_t count,
              const std::string& where) {
  for (std::size_t i = 0; i < count; ++i) {
    set_keyword(fields, object, keys[i].name, field_value(keys[i]), where);
  }
}

}  // namespace fp8lab::interface
