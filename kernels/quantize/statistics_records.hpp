// From what panels found to records, without the host, of many operands at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantize/statistics_block.cuh"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// The scales of an operand, where its panels have been compared.
struct ScaleScan {
  TileGrid grid;
  bool transpose;
  const float* scales;  ///< nullptr: none
  std::int64_t rows, cols, stride;
  std::int64_t tiles;  ///< columns that hold scales; others hold what codebooks need besides
  const std::uint8_t* nonzero;
  Tally* tally;
};

/// Adds those of `count` operands, kMostOperands at most, to their tallies.
void scan_scales(Context& context, const ScaleScan* scans, int count);

/// What single blocks of the last kernel find.
struct FoundOfOperand {
  StatisticsTotals sums;
  ChannelRanks ranks;
};

/// What the last kernel reads and writes for an operand.
struct UnfinishedRecord {
  std::int64_t elements, cols, tiles;
  std::int64_t bands, panels_across;
  PanelResults results;
  FoundOfOperand* found;
  std::uint8_t* record;
};

/// Records that wait for the last kernel, and the memory of what was found for them. It holds zeros
/// where nothing waits.
class UnfinishedRecords final : public Postponed {
 public:
  /// Those of a context.
  static UnfinishedRecords& of(Context& context);

  /// Zeroed memory for the records that are added next, `count` of them.
  std::byte* memory(Context& context, std::size_t bytes, int count);
  /// Of records that wait together and are read none may have the memory of another.
  void add(const UnfinishedRecord& record) { waiting_.of[count_++] = record; }
  void enqueue(Context& context) override;

  /// A launch takes up to 4 KB of arguments.
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
  std::size_t zeroed_ = 0;  ///< bytes of it that held zeros at first
};

}  // namespace fp8lab::cuda
