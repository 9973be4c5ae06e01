#include "src/validate/device_pack.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "src/io/json_document.hpp"
#include "src/io/tensors/safetensors.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;

constexpr const char* kKind = "device-1";
constexpr std::int64_t kMostElements = std::int64_t{1} << 26;  ///< of all tensors of a pack
constexpr std::int64_t kRowsUnit = 16, kColumnsUnit = 8;       ///< of every instruction

/// The type whose elements are codes of a format; TF32 is stored as FP32, its lower bits 0.
StoredType pack_type(const FormatSpec& format) {
  if (format == numerics::kE4M3) return StoredType::f8_e4m3;
  if (format == numerics::kE5M2) return StoredType::f8_e5m2;
  if (format == numerics::kBF16) return StoredType::bf16;
  if (format == numerics::kFP16) return StoredType::f16;
  return StoredType::f32;
}

bool is_known(const FormatSpec& format) {
  return format == numerics::kFP32 || format == numerics::kTF32 ||
         pack_type(format) != StoredType::f32;
}

bool is_fp8_format(const FormatSpec& format) { return format.bits() <= 8; }

/// Elements of K that one instruction multiplies: 32 bytes.
std::int64_t elements_of_k(const FormatSpec& format) {
  return 32 / static_cast<std::int64_t>(size_of(pack_type(format)));
}

/// Bits that a stored element has below those of the code.
int shift_of(const FormatSpec& format) { return format == numerics::kTF32 ? 13 : 0; }

/// The tensors of a file that is written, with their bytes.
struct Contents {
  std::vector<TensorHeader> headers;
  std::vector<TensorBytes> bytes;

  void add(std::string name, const FormatSpec& format, std::vector<std::int64_t> shape,
           const std::vector<std::uint32_t>& codes) {
    headers.push_back({std::move(name), pack_type(format), std::move(shape)});
    FP8LAB_ASSERT(headers.back().size() == static_cast<std::int64_t>(codes.size()));
    const std::size_t width = size_of(headers.back().type);
    TensorBytes& to = bytes.emplace_back(codes.size() * width);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const std::uint32_t element = codes[i] << shift_of(format);
      std::memcpy(to.data() + i * width, &element, width);
    }
  }
};

/// A pack that is read.
class PackReader {
  using json = nlohmann::json;

 public:
  explicit PackReader(const std::filesystem::path& path) : file_(path) {
    const auto& metadata = file_.metadata();
    const auto kind = metadata.find("fp8lab");
    if (kind == metadata.end() || kind->second != kKind) {
      refuse("fp8lab", kind == metadata.end() ? "missing" : quoted_word(kind->second),
             "'device-1', a pack of fp8lab validate device");
    }
    const auto about = metadata.find("about");
    if (about == metadata.end()) refuse("about", "missing", "a JSON object");
    about_ = parse_json(about->second, file_.path() + ": metadata 'about'");
  }

  DevicePack read() {
    DevicePack pack;
    const json& facts = field(about_, "device", json::value_t::object);
    pack.facts = {text(facts, "name"),     number(facts, "major"),   number(facts, "minor"),
                  number(facts, "driver"), number(facts, "runtime"), text(facts, "version")};
    for (const json& one : field(about_, "products", json::value_t::array)) {
      pack.products.push_back(products(one, pack.products.size()));
    }
    for (const json& one : field(about_, "conversions", json::value_t::array)) {
      pack.conversions.push_back(conversions(one, pack.conversions.size()));
    }
    if (pack.products.empty() && pack.conversions.empty()) {
      refuse("products", "empty, as is 'conversions'", "results of a card");
    }
    for (const StoredTensor& tensor : file_.tensors()) {
      if (read_.count(tensor.name) != 0) continue;
      throw InputError({.where = file_.path(),
                        .noun = "tensor",
                        .key = tensor.name,
                        .reason = "belongs to no entry of the metadata: it would not be checked",
                        .accepted = fmt::format("{}", fmt::join(read_, ", "))});
    }
    return pack;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& found,
                           const std::string& accepted) const {
    throw InputError({.where = file_.path(),
                      .noun = "metadata",
                      .key = key,
                      .found = found,
                      .accepted = accepted});
  }

  const json& field(const json& object, const char* key, json::value_t type) const {
    if (!object.is_object() || !object.contains(key) || object[key].type() != type) {
      refuse(key, "missing or of another type", json(type).type_name());
    }
    return object[key];
  }
  std::string text(const json& object, const char* key) const {
    return field(object, key, json::value_t::string).get<std::string>();
  }
  int number(const json& object, const char* key) const {
    if (!object.contains(key) || !object[key].is_number_integer()) {
      refuse(key, "missing or of another type", "an integer");
    }
    const auto value = object[key].get<std::int64_t>();
    if (value < 0 || value > 1'000'000) refuse(key, std::to_string(value), "0 to 1000000");
    return static_cast<int>(value);
  }
  /// A count that is a positive multiple of `unit`.
  std::int64_t multiple(const json& object, const char* key, std::int64_t unit) const {
    const std::int64_t value = number(object, key);
    if (value < 1 || value % unit != 0) {
      refuse(key, std::to_string(value),
             unit == 1 ? std::string("1 or more") : fmt::format("multiples of {}", unit));
    }
    return value;
  }
  FormatSpec format(const json& object, const char* key, const std::string& accepted) const {
    const std::string name = text(object, key);
    const std::optional<FormatSpec> found = format_by_name(name);
    if (!found || !is_known(*found) || accepted.find(format_name(*found)) == std::string::npos) {
      refuse(key, quoted_word(name), accepted);
    }
    return *found;
  }

  /// Counts the elements of a pack, which are limited.
  void count(const char* key, std::int64_t value, std::int64_t elements) {
    elements_ += elements;
    if (elements_ > kMostElements) {
      refuse(key, fmt::format("{}: more than {} elements in the pack", value, kMostElements),
             "fewer");
    }
  }

  std::vector<std::uint32_t> codes(const std::string& name, const FormatSpec& format,
                                   const std::vector<std::int64_t>& shape) {
    const StoredTensor& tensor = file_.at(name);
    read_.insert(name);
    const TensorHeader wanted{name, pack_type(format), shape};
    if (tensor.type != wanted.type || tensor.shape != shape) {
      throw InputError({.where = file_.path(),
                        .noun = "tensor",
                        .key = name,
                        .found = shape_text(tensor),
                        .accepted = shape_text(wanted)});
    }
    const TensorBytes bytes = read_bytes(tensor);
    const std::size_t width = size_of(tensor.type);
    std::vector<std::uint32_t> values(static_cast<std::size_t>(tensor.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&values[i], bytes.data() + i * width, width);
      values[i] >>= shift_of(format);
    }
    return values;
  }

  /// Reads what an instruction multiplies. Refuses what none has.
  void read_instruction(const json& about, DeviceProducts& one) const {
    one.instruction = text(about, "instruction");
    if (one.instruction != "mma.sync" && one.instruction != "wgmma") {
      refuse("instruction", quoted_word(one.instruction), "mma.sync, wgmma");
    }
    one.format_a = format(about, "a", "e4m3fn, e5m2, bf16, fp16, e8m10");
    one.format_b = format(about, "b",
                          is_fp8_format(one.format_a) ? "e4m3fn, e5m2" : format_name(one.format_a));
    one.to_f16 = field(about, "to_f16", json::value_t::boolean).get<bool>();
    if (one.to_f16 && !is_fp8_format(one.format_a) && one.format_a != numerics::kFP16) {
      refuse("to_f16", "true", "false with " + format_name(one.format_a));
    }
  }

  DeviceProducts products(const json& about, std::size_t index) {
    DeviceProducts one;
    read_instruction(about, one);
    one.tiles = multiple(about, "tiles", 1);
    one.rows = multiple(about, "rows", kRowsUnit);
    one.columns = multiple(about, "columns", kColumnsUnit);
    const std::int64_t unit = elements_of_k(one.format_a);
    one.k = multiple(about, "k", unit);
    one.promote = number(about, "promote");
    if (one.promote % unit != 0 || one.promote > one.k) {
      refuse("promote", std::to_string(one.promote),
             fmt::format("0 and multiples of {} up to {}", unit, one.k));
    }
    if (one.promote > 0 && one.to_f16)
      refuse("promote", std::to_string(one.promote), "0 with FP16 results");
    count("tiles", one.tiles,
          one.tiles * ((one.rows + one.columns) * one.k + 2 * one.rows * one.columns));
    const std::string name = fmt::format("product{}.", index);
    one.a = codes(name + "a", one.format_a, {one.tiles, one.rows, one.k});
    one.b = codes(name + "b", one.format_b, {one.tiles, one.columns, one.k});
    const std::vector<std::int64_t> shape{one.tiles, one.rows, one.columns};
    if (file_.find(name + "c") != nullptr) {
      if (one.promote > 0) {
        throw InputError({.where = file_.path(),
                          .noun = "tensor",
                          .key = name + "c",
                          .reason = "is no addend of promoted sums",
                          .accepted = "with 'promote' 0"});
      }
      one.c = codes(name + "c", one.result_format(), shape);
    }
    one.d = codes(name + "d", one.result_format(), shape);
    return one;
  }

  DeviceConversions conversions(const json& about, std::size_t index) {
    DeviceConversions one;
    one.format = format(about, "format", "e4m3fn, e5m2, bf16, fp16");
    const std::int64_t values = multiple(about, "count", 1);
    count("count", values, 2 * values);
    const std::string name = fmt::format("conversion{}.", index);
    one.inputs = codes(name + "x", numerics::kFP32, {values});
    one.codes = codes(name + "codes", one.format, {values});
    return one;
  }

  SafetensorsFile file_;
  json about_;
  std::int64_t elements_ = 0;   ///< of the tensors that were read
  std::set<std::string> read_;  ///< their names
};

}  // namespace

FormatSpec DeviceProducts::result_format() const {
  return to_f16 ? numerics::kFP16 : numerics::kFP32;
}

std::string DeviceProducts::label() const {
  return fmt::format("{} {} x {} + {}, K = {}{}", instruction, format_name(format_a),
                     format_name(format_b), to_f16 ? "fp16" : "fp32", k,
                     promote > 0 ? fmt::format(", promoted every {}", promote) : "");
}

std::string DeviceConversions::label() const { return "fp32 to " + format_name(format); }

void write_device_pack(const std::filesystem::path& path, const DevicePack& pack) {
  Contents contents;
  nlohmann::ordered_json about;
  const DeviceFacts& facts = pack.facts;
  about["device"] = {{"name", facts.name},       {"major", facts.major},
                     {"minor", facts.minor},     {"driver", facts.driver},
                     {"runtime", facts.runtime}, {"version", facts.version}};
  about["products"] = nlohmann::json::array();
  for (std::size_t i = 0; i < pack.products.size(); ++i) {
    const DeviceProducts& one = pack.products[i];
    const std::string name = fmt::format("product{}.", i);
    const FormatSpec format = one.result_format();
    contents.add(name + "a", one.format_a, {one.tiles, one.rows, one.k}, one.a);
    contents.add(name + "b", one.format_b, {one.tiles, one.columns, one.k}, one.b);
    if (!one.c.empty()) {
      contents.add(name + "c", format, {one.tiles, one.rows, one.columns}, one.c);
    }
    contents.add(name + "d", format, {one.tiles, one.rows, one.columns}, one.d);
    about["products"].push_back({{"instruction", one.instruction},
                                 {"a", format_name(one.format_a)},
                                 {"b", format_name(one.format_b)},
                                 {"to_f16", one.to_f16},
                                 {"promote", one.promote},
                                 {"tiles", one.tiles},
                                 {"rows", one.rows},
                                 {"columns", one.columns},
                                 {"k", one.k}});
  }
  about["conversions"] = nlohmann::json::array();
  for (std::size_t i = 0; i < pack.conversions.size(); ++i) {
    const DeviceConversions& one = pack.conversions[i];
    const auto count = static_cast<std::int64_t>(one.inputs.size());
    contents.add(fmt::format("conversion{}.x", i), numerics::kFP32, {count}, one.inputs);
    contents.add(fmt::format("conversion{}.codes", i), one.format, {count}, one.codes);
    about["conversions"].push_back({{"format", format_name(one.format)}, {"count", count}});
  }
  write_safetensors(path, {{"fp8lab", kKind}, {"about", about.dump()}}, contents.headers,
                    [&](std::size_t i) { return std::move(contents.bytes[i]); });
}

DevicePack read_device_pack(const std::filesystem::path& path) { return PackReader(path).read(); }

}  // namespace fp8lab
