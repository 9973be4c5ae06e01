// Names and checksums of the checkpoint format, for its writer and its readers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/io/hdf5/checkpoint_schema.hpp"
#include "src/io/tensors/safetensors_header.hpp"

namespace fp8lab {

/// u8, the last tensor: XXH3-64 of the header, then of the bytes of each other tensor in the order
/// of the file.
constexpr const char* kCheckpointChecksums = "checksums";

/// Returns the XXH3-64 of the header without the checksums; `placed` is in the order of the file.
std::uint64_t checkpoint_header_hash(const std::map<std::string, std::string>& metadata,
                                     const std::vector<TensorHeader>& placed);

}  // namespace fp8lab
