// Names that are also folders: of runs, of studies, of a study's arms.
#pragma once

#include <cstddef>
#include <string_view>

namespace fp8lab {

inline constexpr std::size_t kLongestName = 100;
inline constexpr std::string_view kRunNameRule =
    "1 to 100 letters, digits, '_', '-' and '.', the first of them no '.'";

/// True for a name under kRunNameRule: as a folder it stays where it is put, and every file system
/// takes it.
bool is_run_name(std::string_view name);

/// The run of a study's shared stages; with a hyphen and more where there are several.
inline constexpr std::string_view kSharedRun = "shared";

/// True for names in a study's folder that are not those of arms.
bool is_kept_for_study(std::string_view name);

}  // namespace fp8lab
