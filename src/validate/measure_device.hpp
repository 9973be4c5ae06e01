// Makes a device pack on the present card.
#pragma once

#include <cstdint>

#include "src/validate/device_pack.hpp"

namespace fp8lab {

struct DeviceMeasurement {
  std::uint64_t seed = 1;  ///< of the cases
  int tiles = 32;          ///< of each instruction: 128 results each
};

/// Runs every form of mma.sync that the card has, one instruction at a time, as a chain of four,
/// and with promotion; wgmma where the kernels of the backend run; and the conversions. The inputs
/// are those of emulation/cases/case_generator.hpp, NaN and infinities among them. Throws
/// InputError where the build has no CUDA code or no card is present.
DevicePack measure_device(const DeviceMeasurement& measurement, const std::string& version);

}  // namespace fp8lab
