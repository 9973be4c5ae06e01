// Keys of run files that are also keywords of library calls; independent of files.
#pragma once

#include <string>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/fields.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/config/reading/toml_text.hpp"

namespace fp8lab {

/// Keys of the [optimizer] table, and keywords of Python's Model.
const Fields<OptimizerConfig>& optimizer_fields();
/// Keys of pass_at_k and rollout tables, and keywords of Python's Model.generate.
const Fields<SamplingConfig>& sampling_fields();

/// Sets the member of a keyword. Throws Error that names `where`, the keyword
/// and the accepted values.
template <class S>
void set_keyword(const Fields<S>& fields, S& object, const std::string& word,
                 const FieldValue& value, const std::string& where) {
  const Field<S>* const field = find_field(fields, word);
  if (field == nullptr) {
    std::vector<std::string> names;
    for (const Field<S>& known : fields) names.push_back(known.word);
    throw InputError({.where = where,
                      .noun = "unknown keyword",
                      .key = word,
                      .nearest = did_you_mean(word, names),
                      .accepted = fields::listed(names)});
  }
  if (field->set(object, value)) return;
  throw InputError(
      {.where = where, .key = word, .found = toml_text(value), .accepted = field->accepted});
}

}  // namespace fp8lab
