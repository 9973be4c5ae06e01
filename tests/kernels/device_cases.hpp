// Shapes, types and layouts in which operations are run on the device.
#pragma once

#include <cstdint>

#include "tests/kernels/device_test.hpp"

namespace fp8lab::test {

struct Shape {
  std::int64_t rows, cols;
};
/// One element; odd; whole groups; more than one chunk of a tree sum; several blocks of a column
/// sum.
inline constexpr Shape kShapes[] = {{1, 1},    {3, 7},     {5, 33},   {130, 64}, {4, 4096},
                                    {3, 4097}, {2, 13000}, {523, 24}, {257, 95}};
inline constexpr DType kTypes[] = {DType::bf16, DType::f32};
/// Without gaps; odd row starts; wide rows with gaps; wide rows that start unaligned.
inline constexpr Layout kLayouts[] = {{0, 0}, {3, 0}, {8, 8}, {8, 1}};

/// Calls run(shape, type, other type, layout, seed) for all combinations; `other` for the tensors
/// whose type may differ.
template <class Run>
void for_all(const Run& run) {
  std::uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    for (const DType type : kTypes) {
      for (const DType other : kTypes) {
        for (const Layout& layout : kLayouts) run(shape, type, other, layout, seed += 10);
      }
    }
  }
}

}  // namespace fp8lab::test
