#include "src/cli/kernel_plans.hpp"

#include <fmt/format.h>

#include <map>
#include <type_traits>
#include <utility>
#include <variant>

#include "emulation/recording/work_log.hpp"
#include "kernels/plan/fusion.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/train/plan/time_plan.hpp"

namespace fp8lab::cli {
namespace {

// Each function returns the kernels of an operation; empty for one that has no choice of them.

template <class Op>
std::string kernels_of(const Op&) {
  return {};
}
std::string kernels_of(const ops::Quantize& op);
std::string kernels_of(const ops::QuantizeBoth& op);
std::string kernels_of(const ops::Gemm& op);
std::string kernels_of(const ops::Product& op);
std::string kernels_of(const ops::ProduceQuantize& op);
std::string kernels_of(const ops::AddRmsNormForward& op);
std::string kernels_of(const ops::AddLayerNormForward& op);
std::string kernels_of(const ops::RmsNormBackwardAdd& op);
std::string kernels_of(const ops::LayerNormBackwardAdd& op);

std::string kernels_of(const ops::Quantize& op) {
  if (op.source.size() == 0) return {};  // no kernel runs
  return describe(
      cuda::plan_quantize(op.operand.spec, op.source.rows, op.source.cols, op.transpose));
}

/// A GEMM runs on the tensor core of its accumulator, whose bits define the result.
std::string kernels_of(const ops::Gemm& op) {
  return fmt::format("tensor core {}", label(op.spec));
}

std::string kernels_of(const ops::Product& op) { return kernels_of(op.gemm); }

/// Returns the kernels of the parts of a composite that no fused kernel runs.
template <class Op>
std::string kernels_of_parts(const Op& op) {
  std::string text;
  op.for_each_part([&](const auto& part) {
    const std::string kernels = kernels_of(part);
    text += text.empty() ? "" : "; then ";
    text += kernels.empty() ? std::string(part.kName) : kernels;
  });
  return text;
}

template <class Op>
std::string kernels_of_composite(const Op& op) {
  const cuda::Fusion* const fusion = cuda::fusion_of(op);
  return fusion == nullptr ? kernels_of_parts(op) : std::string(fusion->name());
}

std::string kernels_of(const ops::AddRmsNormForward& op) { return kernels_of_composite(op); }
std::string kernels_of(const ops::AddLayerNormForward& op) { return kernels_of_composite(op); }
std::string kernels_of(const ops::RmsNormBackwardAdd& op) { return kernels_of_composite(op); }
std::string kernels_of(const ops::LayerNormBackwardAdd& op) { return kernels_of_composite(op); }

std::string kernels_of(const ops::QuantizeBoth& op) {
  const auto plan = cuda::plan_quantize_both(op.first.spec, op.second.spec);
  return plan ? describe(*plan) : kernels_of_parts(op);
}

std::string kernels_of(const ops::ProduceQuantize& op) {
  const auto plan = cuda::plan_fusion(op);
  return plan ? describe(*plan) : kernels_of_parts(op);
}

/// Counts the operations that have a choice of kernels, by kind and by what was chosen.
class KernelObserver final : public OperationObserver {
 public:
  void before(const AnyOperation& op, const Label&) override {
    std::visit(
        [this](const auto* operation) {
          if constexpr (!std::is_same_v<decltype(operation), const Upload*>) add(*operation);
        },
        op);
  }

  std::string text() const {
    std::string text;
    for (const auto& [operation, calls] : calls_) {
      text += fmt::format("  {:>4} x {}\n         {}\n", calls, operation.first, operation.second);
    }
    return text;
  }

 private:
  template <class Op>
  void add(const Op& op) {
    const std::string kernels = kernels_of(op);
    if (!kernels.empty()) ++calls_[{kind_of(op), kernels}];
  }

  std::map<std::pair<std::string, std::string>, int> calls_;
};

}  // namespace

std::string describe_kernels(const RunConfig& config, const Backend& backend) {
  std::string text =
      "\nCUDA kernels of a step: number of calls, operation with its operands, and below it the "
      "kernels\nthat run (kernels/README.md)\n";
  std::map<std::string, std::string> described;  // stages by what they run
  for (const StageConfig& stage : config.stages) {
    for (const StageRecipe& of : recipes_of(config, stage)) {
      const Recipe recipe = load_recipe(of.name, config.recorded);
      KernelObserver observer;
      observe_step(config, stage, recipe, backend, observer);
      const auto [place, is_new] = described.emplace(recipe.name + observer.text(), stage.name);
      text += fmt::format(
          "stage {}, recipe {}:{}", stage.name, recipe.name,
          is_new ? "\n" + observer.text() : fmt::format(" as stage {}\n", place->second));
    }
  }
  return text;
}

}  // namespace fp8lab::cli
