#include "emulation/backend.hpp"

namespace fp8lab {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::stress: return "stress";
    case Phase::load: return "load";
    case Phase::weights: return "weights";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::update: return "update";
  }
  return "?";
}

#define FP8LAB_COMPOSITE(Name)                                 \
  Support Backend::supports(const ops::Name& op) const {       \
    Support support;                                           \
    op.for_each_part([&](const auto& part) {                   \
      if (support) support = supports(part);                   \
    });                                                        \
    return support;                                            \
  }                                                            \
  void Backend::run(const ops::Name& op) {                     \
    op.for_each_part([this](const auto& part) { run(part); }); \
  }
FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_COMPOSITE)
#undef FP8LAB_COMPOSITE

void Backend::repeat(std::unique_ptr<Recorded>&, const std::function<void()>& enqueue) {
  enqueue();
}

}  // namespace fp8lab
