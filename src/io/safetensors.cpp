#include "src/io/safetensors.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "emulation/api/error.hpp"
#include "src/io/atomic_file.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;

constexpr std::pair<DType, const char*> kNames[] = {{DType::u8, "U8"},
                                                    {DType::i32, "I32"},
                                                    {DType::bf16, "BF16"},
                                                    {DType::f32, "F32"},
                                                    {DType::f64, "F64"}};
constexpr std::size_t kMaximumHeader = 100u << 20;

std::string stored_name(DType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  return "";
}

DType parse_dtype(const std::string& text, const std::string& where) {
  for (const auto& [type, name] : kNames) {
    if (text == name) return type;
  }
  throw Error(fmt::format("{}: dtype '{}' is not supported", where, text));
}

/// Two integers in [0, 2^63). json would also convert fractions and negative numbers.
std::array<std::uint64_t, 2> parse_pair(const json& value, const std::string& where) {
  std::array<std::uint64_t, 2> pair{};
  bool valid = value.is_array() && value.size() == pair.size();
  for (std::size_t i = 0; valid && i < pair.size(); ++i) {
    valid = value[i].is_number_unsigned() && value[i].get<std::uint64_t>() <= INT64_MAX;
    if (valid) pair[i] = value[i].get<std::uint64_t>();
  }
  if (!valid) {
    throw Error(where + ": expected a 2-D shape and two data offsets, integers from 0 on");
  }
  return pair;
}

struct Extent {
  std::size_t begin, end;
  StoredTensor tensor;
};

Extent parse_entry(const std::string& name, const json& entry, std::size_t data_size,
                   const std::string& path) {
  const std::string where = fmt::format("{}: tensor '{}'", path, name);
  try {
    Extent extent{};
    extent.tensor.name = name;
    extent.tensor.dtype = parse_dtype(entry.at("dtype").get<std::string>(), where);
    const auto shape = parse_pair(entry.at("shape"), where);
    const auto offsets = parse_pair(entry.at("data_offsets"), where);
    if (offsets[0] > offsets[1] || offsets[1] > data_size) {
      throw Error(where + ": data offsets lie outside the file");
    }
    const std::uint64_t bytes = offsets[1] - offsets[0];
    const std::uint64_t width = size_of(extent.tensor.dtype);
    if (shape[1] != 0 && shape[0] > bytes / width / shape[1]) {
      throw Error(where + ": shape is larger than its data");
    }
    if (shape[0] * shape[1] * width != bytes) throw Error(where + ": shape does not fit its data");
    extent.begin = offsets[0];
    extent.end = offsets[1];
    extent.tensor.rows = static_cast<std::int64_t>(shape[0]);
    extent.tensor.cols = static_cast<std::int64_t>(shape[1]);
    return extent;
  } catch (const json::exception&) {
    throw Error(where + ": malformed header entry");
  }
}

void check_no_overlap(std::vector<Extent>& extents, const std::string& path) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end) {
      throw Error(fmt::format("{}: tensors '{}' and '{}' overlap", path, extents[i - 1].tensor.name,
                              extents[i].tensor.name));
    }
  }
}

}  // namespace

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const StoredTensor& tensor) { return tensor.name == name; });
  if (found == tensors.end()) throw Error(fmt::format("no tensor '{}' in the file", name));
  return *found;
}

void write_safetensors(const std::filesystem::path& path, const SafetensorsFile& file) {
  json header = json::object();
  header["__metadata__"] = file.metadata;
  std::size_t offset = 0;
  for (const StoredTensor& tensor : file.tensors) {
    header[tensor.name] = {{"dtype", stored_name(tensor.dtype)},
                           {"shape", {tensor.rows, tensor.cols}},
                           {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  bytes.reserve(8 + text.size() + offset);
  bytes += text;
  for (const StoredTensor& tensor : file.tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  write_file_atomically(path, bytes);
}

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  const std::string name = path.string();
  std::uint64_t length = 0;
  if (bytes.size() < 8) throw Error(name + ": too short for a safetensors file");
  std::memcpy(&length, bytes.data(), 8);
  if (length > kMaximumHeader || length > bytes.size() - 8) {
    throw Error(name + ": header length lies outside the file");
  }
  const char* text = bytes.data() + 8;
  const json header = json::parse(text, text + length, nullptr, false);
  if (!header.is_object()) throw Error(name + ": header is not a JSON object");
  const std::size_t data = 8 + static_cast<std::size_t>(length);
  SafetensorsFile file;
  std::vector<Extent> extents;
  for (const auto& [key, entry] : header.items()) {
    if (key != "__metadata__") {
      extents.push_back(parse_entry(key, entry, bytes.size() - data, name));
    } else if (entry.is_object()) {
      for (const auto& [field, value] : entry.items()) {
        if (!value.is_string()) throw Error(name + ": metadata values must be strings");
        file.metadata[field] = value.get<std::string>();
      }
    }
  }
  check_no_overlap(extents, name);
  for (Extent& extent : extents) {
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data()) + data + extent.begin;
    extent.tensor.bytes.assign(first, first + (extent.end - extent.begin));
    file.tensors.push_back(std::move(extent.tensor));
  }
  return file;
}

}  // namespace fp8lab
