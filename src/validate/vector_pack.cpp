#include "src/validate/vector_pack.hpp"

#include <fmt/format.h>

#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/sha256.hpp"

namespace fp8lab {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

template <class Code>
std::vector<Code> narrowed(const std::vector<std::uint32_t>& wide) {
  std::vector<Code> codes;
  codes.reserve(wide.size());
  for (const std::uint32_t code : wide) codes.push_back(static_cast<Code>(code));
  return codes;
}

}  // namespace

VectorPack::VectorPack(fs::path directory) : directory_(std::move(directory)) {
  make_directories(directory_);
  if (!fs::is_empty(directory_)) {
    throw InputError({.where = directory_.string(),
                      .reason = "the folder is not empty",
                      .accepted = "a new or an empty one"});
  }
}

std::string VectorPack::add_codes(const std::string& name, const numerics::FormatSpec& format,
                                  const std::vector<std::uint32_t>& codes, std::int64_t rows) {
  if (format.bits() <= 8) return add(name, DType::u8, narrowed<std::uint8_t>(codes), rows);
  if (format.bits() <= 16) return add(name, DType::bf16, narrowed<std::uint16_t>(codes), rows);
  std::vector<float> values;  // tf32 as the upper bits of fp32
  values.reserve(codes.size());
  for (const std::uint32_t code : codes) {
    values.push_back(numerics::bits_float(code << (32 - format.bits())));
  }
  return add(name, DType::f32, values, rows);
}

std::string VectorPack::add_code_results(const std::string& name,
                                         const numerics::FormatSpec& format,
                                         const std::vector<std::uint32_t>& codes,
                                         std::int64_t rows) {
  report_.results += codes.size();
  return add_codes(name, format, codes, rows);
}

ExportReport VectorPack::finish(ordered_json manifest) {
  manifest["sections"] = sections_;
  manifest["files"] = files_;
  write_file_atomically(directory_ / "manifest.json", manifest.dump(1) + "\n");
  return report_;
}

std::string VectorPack::write(const std::string& name, const std::string& bytes) {
  const fs::path path = directory_ / name;
  make_directories(path.parent_path());
  write_file_atomically(path, bytes);
  files_[name] = sha256(bytes);
  ++report_.files;
  report_.bytes += bytes.size();
  return name;
}

}  // namespace fp8lab
