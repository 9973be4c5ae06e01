// Names that are also folders: of runs, of studies, and of a study's arms.
#pragma once

#include <cstddef>
#include <string_view>

namespace fp8lab {

inline constexpr std::size_t kLongestName = 100;
inline constexpr std::string_view kRunNameRule =
    "1 to 100 letters, digits, '_', '-' and '.', the first of them no '.'";

/// Returns true for a name that follows kRunNameRule: as a path it stays within its parent folder,
/// and every file system accepts it.
bool is_run_name(std::string_view name);

/// Name of the run of a study's shared stages; if there are several, a hyphen and a suffix follow.
inline constexpr std::string_view kSharedRun = "shared";

/// Returns true for names in a study's folder that are reserved, so that arms cannot have them.
bool is_kept_for_study(std::string_view name);

}  // namespace fp8lab
