#include "src/config/run_name.hpp"

namespace fp8lab {

bool is_run_name(std::string_view name) {
  constexpr std::string_view kAccepted =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         name.find_first_not_of(kAccepted) == std::string_view::npos;
}

bool is_kept_for_study(std::string_view name) {
  const bool shared =
      name.starts_with(kSharedRun) && (name == kSharedRun || name[kSharedRun.size()] == '-');
  return shared || name == "report" || name == "slurm" || name == "study.h5";
}

}  // namespace fp8lab
