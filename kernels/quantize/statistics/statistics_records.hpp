// Turns the results of panels into records on the device, for many operands in one launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantize/statistics/statistics_block.cuh"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// The scales of an operand whose panels have been compared.
struct ScaleScan {
  TileGrid grid;
  bool transpose;
  const float* scales;  ///< nullptr: the operand has none
  std::int64_t rows, cols, stride;
  std::int64_t tiles;  ///< columns with scales; later columns hold further numbers of codebooks
  const std::uint8_t* nonzero;
  Tally* tally;
};

/// Adds the scale counts of `count` operands, kMostOperands at most, to their tallies.
void scan_scales(Context& context, const ScaleScan* scans, int count);

/// Intermediate results of single blocks of the last kernel.
struct FoundOfOperand {
  StatisticsTotals sums;
  ChannelRanks ranks;
};

/// Input and output of the last kernel for one operand.
struct UnfinishedRecord {
  std::int64_t elements, cols, tiles;
  std::int64_t bands, panels_across;
  PanelResults results;
  FoundOfOperand* found;
  std::uint8_t* record;
};

/// Records that wait for the last kernel, with the memory of their inputs. Memory that no
/// waiting record uses holds zeros.
class UnfinishedRecords final : public Postponed {
 public:
  /// Returns the object of a context.
  static UnfinishedRecords& of(Context& context);

  /// Returns zeroed memory for the next `count` records.
  std::byte* memory(Context& context, std::size_t bytes, int count);
  /// Precondition: no two waiting records are written to the same memory, unless nobody reads them.
  void add(const UnfinishedRecord& record) { waiting_.of[count_++] = record; }
  void enqueue(Context& context) override;

  /// kMost records fit into the 4 KB of arguments that a launch can take.
  static constexpr int kMost = 40;
  struct Launch {
    UnfinishedRecord of[kMost];
  };
  static_assert(sizeof(Launch) <= 4096);

 private:
  Launch waiting_{};
  int count_ = 0;
  std::size_t used_ = 0, capacity_ = std::size_t{1} << 25;
  std::byte* memory_ = nullptr;
  std::size_t zeroed_ = 0;  ///< bytes of memory_ that have been zeroed once
};

}  // namespace fp8lab::cuda
