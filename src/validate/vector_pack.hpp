// The files of a conformance pack during writing, shared by the parts of the export.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/numerics/format.hpp"
#include "src/io/tensors/npy.hpp"
#include "src/validate/export.hpp"

namespace fp8lab {

/// The output folder of export_vectors, with the lists of cases and hashes of its manifest.
class VectorPack {
 public:
  /// Creates the folder. Throws Error unless it is new or empty.
  explicit VectorPack(std::filesystem::path directory);

  /// Writes rows x (elements / rows) elements as NAME.npy, a matrix, and returns the file's name.
  template <class T>
  std::string add(const std::string& name, DType dtype, const std::vector<T>& elements,
                  std::int64_t rows = 1) {
    FP8LAB_ASSERT(sizeof(T) == size_of(dtype) && rows > 0);
    NpyArray array;
    array.dtype = dtype;
    array.rows = rows;
    array.cols = static_cast<std::int64_t>(elements.size()) / rows;
    array.data.resize(elements.size() * sizeof(T));
    std::memcpy(array.data.data(), elements.data(), array.data.size());
    return write(name + ".npy", format_npy(array));
  }

  /// Like `add`, and counts the elements as results.
  template <class T>
  std::string add_result(const std::string& name, DType dtype, const std::vector<T>& elements,
                         std::int64_t rows = 1) {
    report_.results += elements.size();
    return add(name, dtype, elements, rows);
  }

  /// Writes codes in the narrowest type: u8, u16, or the upper bits of an FP32 word.
  std::string add_codes(const std::string& name, const numerics::FormatSpec& format,
                        const std::vector<std::uint32_t>& codes, std::int64_t rows);
  /// Like `add_codes`, and counts the codes as results.
  std::string add_code_results(const std::string& name, const numerics::FormatSpec& format,
                               const std::vector<std::uint32_t>& codes, std::int64_t rows);

  /// Returns a named list of cases of the manifest.
  nlohmann::ordered_json& section(const char* name) { return sections_[name]; }

  /// Writes manifest.json, which completes the pack.
  ExportReport finish(nlohmann::ordered_json manifest);

 private:
  std::string write(const std::string& name, const std::string& bytes);

  std::filesystem::path directory_;
  nlohmann::ordered_json sections_ = nlohmann::ordered_json::object();
  nlohmann::ordered_json files_ = nlohmann::ordered_json::object();
  ExportReport report_;
};

}  // namespace fp8lab
