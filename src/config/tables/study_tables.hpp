// Rows of a study file.
#pragma once

#include "src/config/config.hpp"
#include "src/config/tables/table.hpp"

namespace fp8lab {

/// The table [design].
const Table<StudyDesign>& design_table();
/// The key `scale`.
const Field<StudyConfig>& scale_field();

}  // namespace fp8lab
