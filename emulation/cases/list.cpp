#include "emulation/cases/list.hpp"

#include "emulation/cases/case_draw.hpp"

namespace fp8lab {
namespace {

/// FNV-1a, so that different operations draw different words.
std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const char letter : name) {
    hash = (hash ^ static_cast<std::uint8_t>(letter)) * 0x100000001B3ull;
  }
  return hash;
}

}  // namespace

void for_each_case(const CaseSource& source, std::uint64_t seed, int round,
                   const CaseVisitor& visit) {
  const std::uint64_t stream = hash_of(source.operation) + seed + static_cast<std::uint64_t>(round);
  CaseDraw draw(stream, round, visit);
  source.draw(draw);
}

}  // namespace fp8lab
