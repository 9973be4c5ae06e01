// Runs tensor-core instructions and conversions of the present card, one at a time, so that its
// results can be compared with recorded profiles. It needs compute capability 8.0, less than the
// kernels of the backend, and is compiled for every architecture that the toolkit knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/probes/mma_forms.hpp"

namespace fp8lab::cuda {

struct CardFacts {
  std::string name;
  int major = 0, minor = 0;     ///< compute capability
  int driver = 0, runtime = 0;  ///< 13000 is CUDA 13.0
};

/// Returns the facts of the current device. Throws RuntimeFailure where there is none.
CardFacts card_facts();

inline constexpr int kMmaRows = 16, kMmaColumns = 8;

/// Products of tiles: D tile (16, 8) = A tile (16, steps * k) B tile (8, steps * k)^T + C tile, k
/// that of one instruction, tiles one after the other, K contiguous. Instructions follow each other
/// along K, each from the accumulator of the one before. With `promoted` > 0 the accumulator
/// restarts from +0 after that many instructions, and its sums are added to those before in FP32,
/// to nearest even: FP32 accumulators alone, and C is not read.
struct MmaTiles {
  MmaTypes types = MmaTypes::e4m3_e4m3_f32;
  int tiles = 0, steps = 1, promoted = 0;
  std::vector<std::uint8_t> a, b;  ///< codes, 1, 2 or 4 bytes each; TF32 as FP32
  std::vector<std::uint32_t> c;    ///< bits of FP32 or FP16
};

/// Returns D, bits of FP32 or FP16, each in a word. Throws Error if the card does not have the
/// instruction (MmaForm::architecture) and RuntimeFailure if a CUDA call fails.
std::vector<std::uint32_t> multiply_tiles(const MmaTiles& tiles);

/// Conversions of FP32 to codes, to nearest even, as the toolkit's headers make them: by cvt where
/// the card has it. FP8 saturates.
enum class CardConversion : std::uint8_t { e4m3, e5m2, bf16, f16 };

std::vector<std::uint32_t> convert_values(CardConversion conversion,
                                          const std::vector<std::uint32_t>& f32_bits);

}  // namespace fp8lab::cuda
