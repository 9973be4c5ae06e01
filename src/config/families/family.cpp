#include "src/config/families/family.hpp"

#include <fmt/format.h>

#include <array>

#include "src/config/size_limits.hpp"

namespace fp8lab {

std::span<const Family* const> families() {
  static constexpr std::array<const Family*, 4> kAll = {&kLlama, &kQwen2, &kQwen3, &kGpt2};
  return kAll;
}

void require_possible_size(const JsonFields& fields, const char* key, const ModelConfig& model) {
  const double size = approximate_parameters(model);
  if (size <= kMostParameters) return;
  fields.fail(key, fmt::format("and the other sizes make {:.3g} parameters; accepted: at most "
                               "{:.3g}",
                               size, kMostParameters));
}

}  // namespace fp8lab
