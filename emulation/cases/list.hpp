// The random cases of every operation: one function for each entry of the lists of operations. An
// operation without cases does not link.
#pragma once

#include <cstdint>
#include <string_view>

#include "emulation/cases/operation_case.hpp"
#include "emulation/ops/list.hpp"

namespace fp8lab {

class CaseDraw;

/// Draws the cases of Op in one round, at least one in every round. They include the operations
/// that make its input or use its result if only a sequence reveals an error.
template <class Op>
void draw_cases(CaseDraw& draw);

#define FP8LAB_OPERATION(Name) \
  template <>                  \
  void draw_cases<ops::Name>(CaseDraw & draw);
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

struct CaseSource {
  std::string_view operation;  ///< kName of the operation
  void (*draw)(CaseDraw&);
};

/// The sources of all operations and all composites, in the order of the lists.
#define FP8LAB_OPERATION(Name) {ops::Name::kName, draw_cases<ops::Name>},
inline constexpr CaseSource kCaseSources[] = {FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
                                                  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)};
#undef FP8LAB_OPERATION

/// Calls visit(case) for the cases of one round. Round 0 has the smallest shapes; sizes grow and
/// then alternate. The cases depend on the operation, the seed and the round alone.
void for_each_case(const CaseSource& source, std::uint64_t seed, int round,
                   const CaseVisitor& visit);

}  // namespace fp8lab
