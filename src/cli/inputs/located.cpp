#include "src/cli/inputs/located.hpp"

#include <fmt/format.h>

#include "emulation/recording/operation_words.hpp"
#include "emulation/spec/slot.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;
using Where = LocatedDifference::Where;
using Parts = GemmElement::Parts;

std::string hex(std::uint64_t bits, DType dtype) {
  return fmt::format("0x{:0{}x}", bits, 2 * size_of(dtype));
}

/// Returns "codes of fprop.x, operand a of the GEMM fprop".
std::string output_words(const TracedOutput& output) {
  if (output.part.empty()) return output.name;
  for (const Slot slot : kSlots) {
    if (slot_name(slot) != output.part) continue;
    return fmt::format("{} of {}, operand {} of the GEMM {}", output.name, output.part,
                       is_right(slot) ? "b" : "a", gemm_role_name(gemm_role(slot)));
  }
  return fmt::format("{} of {}", output.name, output.part);
}

/// Returns "micro-batch 1, backward, layers.1.mlp.down, GEMM dgrad: result D".
std::string place_words(const TracedOutput& output) {
  const Label& label = output.label;
  std::string words = fmt::format("micro-batch {}, {}", label.micro_batch, name_of(label.phase));
  if (!label.layer.empty()) words += ", " + label.layer;
  if (!label.gemm.empty()) {
    return fmt::format("{}, GEMM {}: {}", words, label.gemm,
                       output.name == "d" ? "result D" : output.name);
  }
  return fmt::format("{}, {}: {}", words, operation_words(output.kind), output_words(output));
}

std::string extent(std::int64_t elements) {
  return elements == 0 ? "all" : fmt::format("{}", elements);
}

std::string element_line(const LocatedDifference& found, const std::string& a,
                         const std::string& b) {
  const ElementDifference& at = *found.element;
  std::string line = fmt::format("  element ({}, {})", at.row, at.col);
  const DType dtype = at.dtype;
  if (found.a) {
    line += fmt::format(" of {} x {} {}", found.a->rows, found.a->cols, name_of(dtype));
  }
  if (found.tile) {
    line += fmt::format(", tile ({}, {}) of {} x {}", found.tile->row, found.tile->col,
                        extent(found.tile->rows), extent(found.tile->cols));
  }
  return line + fmt::format(": {} {} = {}, {} {} = {}; {} of {} elements differ\n", a,
                            hex(at.bits_a, dtype), at.value_a, b, hex(at.bits_b, dtype), at.value_b,
                            at.count, at.of);
}

std::string gemm_line(const LocatedDifference& found, const std::string& a, const std::string& b) {
  const GemmElement& gemm = *found.gemm;
  const DType dtype = found.a->dtype;
  switch (gemm.parts) {
    case Parts::unknown: break;
    case Parts::operands: return "  k: the operands differ\n";
    case Parts::sum:
      return fmt::format(
          "  k: from the same operands the sums part with the products {} to {}: "
          "{} {}, {} {}\n",
          gemm.k_begin, gemm.k_end - 1, a, gemm.sum_a, b, gemm.sum_b);
    case Parts::epilogue:
      return "  k: the sums are the same over all of k; what follows them differs\n";
    case Parts::after_sum: {
      std::string line = "  k: after the sum: from the same operands";
      const auto side = [&](const std::string& name, std::uint64_t given, bool holds) {
        line += fmt::format("{} {} gets {} and {}", name == a ? "" : ",", name, hex(given, dtype),
                            holds ? "holds that" : "holds something else");
      };
      side(a, gemm.given_a, gemm.holds_a);
      side(b, gemm.given_b, gemm.holds_b);
      return line + "\n";
    }
  }
  return {};
}

ordered_json to_json(const TracedOutput& output) {
  const Label& label = output.label;
  return {{"micro_batch", label.micro_batch},
          {"phase", name_of(label.phase)},
          {"layer", label.layer},
          {"gemm", label.gemm},
          {"operation", output.kind},
          {"output", output.name},
          {"operand", output.part},
          {"dtype", name_of(output.dtype)},
          {"rows", output.rows},
          {"cols", output.cols}};
}

ordered_json to_json(const GemmElement& gemm, DType dtype) {
  constexpr std::array<const char*, 5> kNames = {"unknown", "operands", "sum", "epilogue",
                                                 "after_sum"};
  ordered_json json = {{"parts", kNames[static_cast<std::size_t>(gemm.parts)]}};
  if (gemm.parts == Parts::sum) {
    json.update({{"k_begin", gemm.k_begin},
                 {"k_end", gemm.k_end},
                 {"sum_a", gemm.sum_a},
                 {"sum_b", gemm.sum_b}});
  }
  if (gemm.parts == Parts::after_sum) {
    json.update({{"given_a", hex(gemm.given_a, dtype)},
                 {"given_b", hex(gemm.given_b, dtype)},
                 {"holds_a", gemm.holds_a},
                 {"holds_b", gemm.holds_b}});
  }
  return json;
}

}  // namespace

std::string describe(const LocatedDifference& found, const std::string& a, const std::string& b) {
  std::string text = fmt::format("first difference: step {}, ", found.step);
  switch (found.where) {
    case Where::nowhere: return {};
    case Where::state: text += fmt::format("before it: {}\n", found.state); break;
    case Where::order:
      text += "the operations are not the same\n";
      for (const auto& [name, output] : {std::pair(a, found.a), std::pair(b, found.b)}) {
        text += fmt::format("  {}: {}\n", name,
                            output ? fmt::format("{}, {} x {} {}", place_words(*output),
                                                 output->rows, output->cols, name_of(output->dtype))
                                   : "nothing more");
      }
      break;
    case Where::operation: text += place_words(*found.a) + "\n"; break;
  }
  if (found.element) text += element_line(found, a, b);
  if (found.where == Where::state && !found.element) {
    text += "  its type or shape is not the same\n";
  }
  if (found.gemm) text += gemm_line(found, a, b);
  return text;
}

nlohmann::ordered_json to_json(const LocatedDifference& found) {
  constexpr std::array<const char*, 4> kWhere = {"nowhere", "state", "order", "operation"};
  ordered_json json = {{"where", kWhere[static_cast<std::size_t>(found.where)]},
                       {"step", found.step}};
  if (found.where == Where::state) json["state"] = found.state;
  if (found.where == Where::operation) json["output"] = to_json(*found.a);
  if (found.where == Where::order) {
    json["a"] = found.a ? to_json(*found.a) : ordered_json();
    json["b"] = found.b ? to_json(*found.b) : ordered_json();
  }
  if (found.element) {
    const ElementDifference& at = *found.element;
    const DType dtype = at.dtype;
    json["element"] = {{"row", at.row},
                       {"col", at.col},
                       {"bits_a", hex(at.bits_a, dtype)},
                       {"bits_b", hex(at.bits_b, dtype)},
                       {"value_a", at.value_a},
                       {"value_b", at.value_b},
                       {"differing", at.count},
                       {"of", at.of}};
  }
  if (found.tile) {
    json["tile"] = {{"row", found.tile->row},
                    {"col", found.tile->col},
                    {"rows", found.tile->rows},
                    {"cols", found.tile->cols}};
  }
  if (found.gemm) json["gemm"] = to_json(*found.gemm, found.a->dtype);
  return json;
}

}  // namespace fp8lab::cli
