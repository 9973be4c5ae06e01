// Checks of tensor-core instructions, single output elements and whole GEMMs.
#include <fmt/format.h>

#include <iterator>
#include <memory>

#include "emulation/numerics/codec.hpp"
#include "src/validate/gemm_cases.hpp"
#include "src/validate/suite_checks.hpp"

namespace fp8lab {
namespace {

using numerics::EpilogueScales;
using numerics::FormatSpec;
using numerics::ScaleOrder;

// --- library modes ------------------------------------------------------------------------------

struct LibraryMode {
  const char* name;
  std::int64_t interval, scale_width_a, scale_width_b;
  ScaleOrder order;
  EpilogueScales scales;
  bool bf16;
};

constexpr LibraryMode kModes[] = {
    {"scalar, fast", 0, 0, 0, ScaleOrder::epilogue, EpilogueScales::scalar, false},
    {"scalar", 128, 0, 0, ScaleOrder::epilogue, EpilogueScales::scalar, false},
    {"outer, fast", 0, 0, 0, ScaleOrder::epilogue, EpilogueScales::outer, false},
    {"outer", 128, 0, 0, ScaleOrder::epilogue, EpilogueScales::outer, false},
    {"1x128 by 1x128", 128, 128, 128, ScaleOrder::b_then_a, EpilogueScales::none, false},
    {"1x128 by 128x128", 128, 128, 128, ScaleOrder::product_first, EpilogueScales::none, false},
    {"bf16", 0, 0, 0, ScaleOrder::epilogue, EpilogueScales::none, true},
};
constexpr FormatSpec kOutputs[] = {numerics::kFP32, numerics::kBF16, numerics::kFP16,
                                   numerics::kE4M3};
constexpr int kElementsPerMode = 160;

struct ExpectedElement {
  const LibraryMode* mode = nullptr;
  ElementProblem problem;
  std::vector<std::uint32_t> a, b;
  std::uint32_t result = 0;
};

ExpectedElement draw_element(const LibraryMode& mode, CaseGenerator& cases) {
  constexpr FormatSpec kFp8[] = {numerics::kE4M3, numerics::kE5M2};
  ExpectedElement drawn;
  drawn.mode = &mode;
  ElementProblem& p = drawn.problem;
  p.k = 1 + cases.bits() % 700;
  p.element.group = mode.bf16 ? numerics::kSm90Bf16F32 : numerics::kSm90WgmmaFp8F32;
  p.element.format_a = mode.bf16 ? numerics::kBF16 : kFp8[cases.bits() % 2];
  p.element.format_b = mode.bf16 ? numerics::kBF16 : kFp8[cases.bits() % 2];
  p.element.promote_interval = mode.interval;
  p.element.order = mode.order;
  p.element.scale_width_a = mode.scale_width_a;
  p.element.scale_width_b = mode.scale_width_b;
  if (p.k > 256 && cases.bits() % 4 == 0) {
    p.element.range_width = numerics::split_range_width(p.k, mode.bf16 ? 64 : 128, 2, false);
    p.epilogue.split_k = true;
  }
  p.epilogue.scales = mode.scales;
  p.epilogue.output = kOutputs[cases.bits() % std::size(kOutputs)];
  if (p.epilogue.output == numerics::kE4M3) p.epilogue.output_scale = ordinary_scale(cases);
  const std::uint32_t alpha = cases.bits() % 8;
  p.epilogue.alpha = alpha == 0 ? 0.0f : alpha == 1 ? -2.0f : ordinary_scale(cases);
  const bool specials = cases.bits() % 8 == 0;
  drawn.a = cases.codes<std::uint32_t>(p.element.format_a, 1, p.k, 1, 16, specials);
  drawn.b = cases.codes<std::uint32_t>(p.element.format_b, 1, p.k, 1, 24, specials);
  const bool extreme = cases.bits() % 8 == 0;
  const auto scales = [&](std::int64_t width) {
    std::vector<float> list(width == 0 ? 1 : static_cast<std::size_t>((p.k + width - 1) / width));
    for (float& scale : list) scale = extreme ? cases.scale() : ordinary_scale(cases);
    return list;
  };
  p.sa = scales(mode.scale_width_a);
  p.sb = scales(mode.scale_width_b);
  if (cases.bits() % 3 == 0) {
    p.epilogue.beta = ordinary_scale(cases);
    p.c = cases.accumulator();
  }
  if (cases.bits() % 3 == 0) p.bias = cases.bits() % 2 == 0 ? ordinary_scale(cases) : 100.0f;
  return drawn;
}

// --- whole GEMMs --------------------------------------------------------------------------------

constexpr int kGemmsPerPair = 10;

struct ExpectedGemm {
  GemmProblem problem;  ///< not yet run
  GemmProblem result;
};

// --- recorded GEMMs -----------------------------------------------------------------------------

ElementProblem element_problem(const GemmModel& model, const GemmRecord& record, std::size_t r,
                               std::size_t c) {
  const auto row_of = [](const std::vector<float>& scales, std::size_t row, std::uint32_t width) {
    if (width == 0) return std::vector<float>{1.0f};
    const auto first = scales.begin() + static_cast<std::ptrdiff_t>(row * width);
    return std::vector<float>(first, first + width);
  };
  ElementProblem problem;
  problem.element = model.element;
  problem.epilogue = model.epilogue;
  problem.k = record.k;
  problem.a = record.a.data() + r * record.k;
  problem.b = record.b.data() + c * record.k;
  problem.sa = row_of(record.sa, r, record.scales_a);
  problem.sb = row_of(record.sb, c, record.scales_b);
  if (record.has_c()) problem.c = record.c[r * record.cols.size() + c];
  if (record.has_bias != 0) problem.bias = record.bias[r];
  return problem;
}

}  // namespace

SuiteCheck group_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<ExpectedGroup>>();
  for (const Instruction& instruction : kInstructions) {
    for (ExpectedGroup& one : draw_groups(instruction, expected, cases)) {
      list->push_back(std::move(one));
    }
  }
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const ExpectedGroup& one : *list) {
      const bool goes_on = tally.check(one.result, tested.group(one.problem()), [&] {
        return fmt::format("{}, group {}, accumulator {:#x}", one.instruction->name,
                           &one - list->data(), one.c_bits);
      });
      if (!goes_on) return;
    }
  };
  return {"group", [](const Implementation& tested) { return bool(tested.group); }, run};
}

SuiteCheck element_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<ExpectedElement>>();
  for (const LibraryMode& mode : kModes) {
    for (int i = 0; i < kElementsPerMode; ++i) {
      list->push_back(draw_element(mode, cases));
      ExpectedElement& one = list->back();
      one.problem.a = one.a.data();
      one.problem.b = one.b.data();
      one.result = expected.element(one.problem);
    }
  }
  // The vectors of codes may have moved with their elements, but their heap memory has not.
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const ExpectedElement& one : *list) {
      const bool goes_on = tally.check(one.result, tested.element(one.problem), [&] {
        return fmt::format("mode {}, K {}, alpha {}, beta {}, output {}{}{}", one.mode->name,
                           one.problem.k, one.problem.epilogue.alpha, one.problem.epilogue.beta,
                           format_name(one.problem.epilogue.output),
                           one.problem.epilogue.split_k ? ", split" : "",
                           one.problem.bias ? ", bias" : "");
      });
      if (!goes_on) return;
    }
  };
  return {"element", [](const Implementation& tested) { return bool(tested.element); }, run};
}

SuiteCheck gemm_check(const Implementation& expected, CaseGenerator& cases) {
  auto list = std::make_shared<std::vector<ExpectedGemm>>();
  for (const OperandPair& pair : kPairs) {
    for (int i = 0; i < kGemmsPerPair; ++i) {
      ExpectedGemm one;
      one.problem = draw_gemm(pair, cases);
      one.result = one.problem;
      one.result.run(expected);
      list->push_back(std::move(one));
    }
  }
  const auto run = [list](const Implementation& tested, CheckTally& tally) {
    for (const ExpectedGemm& one : *list) {
      GemmProblem actual = one.problem;
      actual.run(tested);
      for (std::size_t i = 0; i < actual.d.size(); ++i) {
        const bool goes_on = tally.check(one.result.result(i), actual.result(i),
                                         [&] { return one.problem.describe(i); });
        if (!goes_on) return;
      }
    }
  };
  return {"gemm", [](const Implementation& tested) { return bool(tested.gemm); }, run};
}

SuiteCheck recorded_group_check(const std::filesystem::path& file) {
  auto records = std::make_shared<std::vector<MmaRecord>>();
  read_mma_records(file, [&](const MmaRecord& record) {
    if (mma_model(record).known) records->push_back(record);
  });
  const auto run = [records](const Implementation& tested, CheckTally& tally) {
    for (const MmaRecord& record : *records) {
      const MmaModel model = mma_model(record);
      for (const MmaTile& tile : record.tiles) {
        for (std::size_t i = 0; i < tile.d.size(); ++i) {
          const GroupProblem problem{model,
                                     *golden_format(record.format_a),
                                     *golden_format(record.format_b),
                                     tile.a.data() + i / 8 * record.k,
                                     tile.b.data() + i % 8 * record.k,
                                     static_cast<int>(record.k),
                                     tile.c[i]};
          const bool goes_on = tally.check(tile.d[i], tested.group(problem), [&] {
            return fmt::format("{}, tile {}, row {}, column {}", record.name,
                               &tile - record.tiles.data(), i / 8, i % 8);
          });
          if (!goes_on) return;
        }
      }
    }
  };
  return {file.filename().string(), [](const Implementation& tested) { return bool(tested.group); },
          run};
}

SuiteCheck recorded_element_check(const std::filesystem::path& file) {
  auto records = std::make_shared<std::vector<GemmRecord>>();
  read_gemm_records(file, [&](const GemmRecord& record) {
    if (gemm_model(record).known) records->push_back(record);
  });
  const auto run = [records](const Implementation& tested, CheckTally& tally) {
    for (const GemmRecord& record : *records) {
      const GemmModel model = gemm_model(record);
      for (std::size_t i = 0; i < record.d.size(); ++i) {
        const std::size_t r = i / record.cols.size(), c = i % record.cols.size();
        const bool goes_on =
            tally.check(record.d[i], tested.element(element_problem(model, record, r, c)), [&] {
              return fmt::format("record {} (M {}, N {}, K {}), row {}, column {}",
                                 &record - records->data(), record.m, record.n, record.k,
                                 record.rows[r], record.cols[c]);
            });
        if (!goes_on) return;
      }
    }
  };
  return {file.filename().string(),
          [](const Implementation& tested) { return bool(tested.element); }, run};
}

}  // namespace fp8lab
