// The device pack: one file with what a card returned for tensor-core instructions and conversions,
// which its owner can send and anybody can compare with the profiles of the specification.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "emulation/numerics/format.hpp"

namespace fp8lab {

/// The card and the program that asked it.
struct DeviceFacts {
  std::string name;             ///< "NVIDIA H200"
  int major = 0, minor = 0;     ///< compute capability
  int driver = 0, runtime = 0;  ///< 13000 is CUDA 13.0
  std::string version;          ///< of fp8lab

  bool operator==(const DeviceFacts&) const = default;
};

/// Products of tiles by one kind of instruction: D (rows, columns) = A (rows, k) B (columns, k)^T
/// + C for each tile. Codes and bits, tile after tile, K contiguous.
struct DeviceProducts {
  std::string instruction;  ///< "mma.sync" or "wgmma"
  numerics::FormatSpec format_a, format_b;
  bool to_f16 = false;       ///< FP16 accumulator, C and D; else FP32
  std::int64_t promote = 0;  ///< elements of K after which sums are promoted in FP32; 0: never
  std::int64_t tiles = 0, rows = 0, columns = 0, k = 0;
  std::vector<std::uint32_t> a, b;
  std::vector<std::uint32_t> c;  ///< empty: +0
  std::vector<std::uint32_t> d;

  /// "mma.sync e4m3fn x e5m2 + fp32, K = 128, promoted every 128".
  std::string label() const;
  numerics::FormatSpec result_format() const;  ///< of C and D
  std::int64_t results() const { return tiles * rows * columns; }

  bool operator==(const DeviceProducts&) const = default;
};

/// Conversions of FP32 to codes, to nearest even; FP8 saturates, wider formats overflow to
/// infinity.
struct DeviceConversions {
  numerics::FormatSpec format;
  std::vector<std::uint32_t> inputs;  ///< FP32 bits
  std::vector<std::uint32_t> codes;

  std::string label() const;  ///< "fp32 to e4m3fn"

  bool operator==(const DeviceConversions&) const = default;
};

struct DevicePack {
  DeviceFacts facts;
  std::vector<DeviceProducts> products;
  std::vector<DeviceConversions> conversions;

  bool operator==(const DevicePack&) const = default;
};

/// Writes a safetensors file, atomically: tensors "N.a", "N.b", "N.c", "N.d" of each product, and
/// "N.x", "N.codes" of each conversion, in the types of their formats; the metadata describes them.
void write_device_pack(const std::filesystem::path& path, const DevicePack& pack);

/// Inverse of write_device_pack. Throws Error that names the file and the tensor or field for
/// anything else: other metadata, shapes that do not fit, products that no instruction has
/// (formats, K, promotion, an addend of promoted sums), no results at all, more than 2^26 elements.
DevicePack read_device_pack(const std::filesystem::path& path);

}  // namespace fp8lab
