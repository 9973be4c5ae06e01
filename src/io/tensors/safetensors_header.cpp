#include "src/io/tensors/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;

/// Limits the length of names in messages and memory.
constexpr std::size_t kMaximumName = 1024;

/// Builds the header during parsing, so that nothing is stored before it is checked.
class HeaderBuilder : public json::json_sax_t {
 public:
  explicit HeaderBuilder(const std::string& origin) : origin_(origin) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { unexpected(); }
  bool boolean(bool) override { unexpected(); }
  bool number_integer(number_integer_t) override { unexpected(); }
  bool number_float(number_float_t, const string_t&) override { unexpected(); }
  bool binary(binary_t&) override { unexpected(); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::shape && state_ != State::offsets) unexpected();
    if (value > INT64_MAX) fail(fmt::format("{} is no size or offset", value));
    if (state_ == State::shape) {
      entry_.tensor.shape.push_back(static_cast<std::int64_t>(value));
    } else {
      if (offsets_ == 2) fail("data_offsets are not two numbers");
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (state_ != State::entry || key_ != "dtype") unexpected();
    const std::optional<StoredType> type = parse_stored_type(value);
    if (!type) fail(fmt::format("dtype '{}' is not supported", value.substr(0, 40)));
    entry_.tensor.type = *type;
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::begin) {
      state_ = State::tensors;
    } else if (state_ == State::tensors && key_ == "__metadata__") {
      state_ = State::metadata;
      keys_.clear();
    } else if (state_ == State::tensors) {
      state_ = State::entry;
      keys_.clear();
      entry_ = {};
      entry_.tensor.name = key_;
      offsets_ = 0;
    } else {
      unexpected();
    }
    return true;
  }

  bool key(string_t& value) override {
    if (value.size() > kMaximumName) fail(fmt::format("a name of {} bytes", value.size()));
    if (state_ == State::tensors) {
      key_ = value;
      if (!names_.insert(value).second) fail("named twice");
      return true;
    }
    const bool known = value == "dtype" || value == "shape" || value == "data_offsets";
    if (state_ == State::entry && !known) {
      fail(fmt::format("malformed header entry: unknown key '{}'", value));
    }
    if (!keys_.insert(value).second) fail(fmt::format("key '{}' is given twice", value));
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (state_ == State::entry) {
      if (keys_.size() != 3) {
        fail("malformed header entry: needs 'dtype', 'shape' and 'data_offsets'");
      }
      if (offsets_ != 2) fail("data_offsets are not two numbers");
      header_.tensors.push_back(std::move(entry_));
      entry_ = {};
    }
    state_ = state_ == State::tensors ? State::done : State::tensors;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::entry || (key_ != "shape" && key_ != "data_offsets")) unexpected();
    state_ = key_ == "shape" ? State::shape : State::offsets;
    return true;
  }

  bool end_array() override {
    state_ = State::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    throw InputError(
        {.where = origin_,
         .reason = fmt::format("header is not a JSON object: error at byte {} of it", position)});
  }

 private:
  enum class State { begin, tensors, metadata, entry, shape, offsets, done };

  [[noreturn]] void fail(const std::string& what) const {
    if (state_ == State::begin) throw InputError({.where = origin_, .reason = what});
    const bool metadata = state_ == State::metadata;
    const std::string& name = entry_.tensor.name.empty() ? key_ : entry_.tensor.name;
    throw Error(metadata ? fmt::format("{}: __metadata__: {}", origin_, what)
                         : fmt::format("{}: tensor '{}': {}", origin_, name, what));
  }

  [[noreturn]] void unexpected() const {
    switch (state_) {
      case State::begin: fail("header is not a JSON object");
      case State::metadata: fail("metadata values must be strings");
      case State::shape: fail("shape: expected integers from 0 on");
      case State::offsets: fail("data_offsets: expected two integers from 0 on");
      default: fail("malformed header entry");
    }
  }

  const std::string& origin_;
  SafetensorsHeader header_;
  State state_ = State::begin;
  std::string key_;                        ///< the key read last
  std::unordered_set<std::string> names_;  ///< tensor names so far
  std::unordered_set<std::string> keys_;   ///< keys of the current object
  TensorPlace entry_;
  int offsets_ = 0;
};

void check_extent(const TensorPlace& place, std::uint64_t data_size, const std::string& where) {
  if (place.begin > place.end || place.end > data_size) {
    throw InputError(
        {.where = where,
         .reason = fmt::format(
             "data offsets [{}, {}) lie outside the file, which has {} bytes of tensors",
             place.begin, place.end, data_size)});
  }
  std::uint64_t bytes = size_of(place.tensor.type);
  bool overflows = false;
  for (const std::int64_t extent : place.tensor.shape) {
    if (extent == 0) continue;
    overflows |= __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes);
  }
  const auto& shape = place.tensor.shape;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) bytes = 0;
  if (overflows || bytes != place.end - place.begin) {
    throw InputError({.where = where,
                      .reason = fmt::format("shape {} does not fit its {} bytes of data",
                                            shape_text(place.tensor), place.end - place.begin)});
  }
}

/// Throws unless the tensors are contiguous from the first byte to the last.
void check_places(std::vector<TensorPlace>& tensors, std::uint64_t data_size,
                  const std::string& origin) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorPlace& a, const TensorPlace& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].begin < filled) {
      throw InputError({.where = origin,
                        .reason = fmt::format("tensors '{}' and '{}' overlap",
                                              tensors[i - 1].tensor.name, tensors[i].tensor.name)});
    }
    if (tensors[i].begin > filled) {
      throw InputError({.where = origin,
                        .noun = "tensor",
                        .key = tensors[i].tensor.name,
                        .reason = fmt::format(": a hole of {} bytes lies before its data",
                                              tensors[i].begin - filled)});
    }
    filled = tensors[i].end;
  }
  if (filled != data_size) {
    throw InputError({.where = origin,
                      .reason = fmt::format("{} bytes after the last tensor", data_size - filled)});
  }
}

}  // namespace

std::int64_t TensorHeader::size() const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  return size;
}

std::string shape_text(const TensorHeader& tensor) {
  // Truncates long shapes from hostile headers.
  const std::size_t shown = std::min<std::size_t>(tensor.shape.size(), 8);
  return fmt::format("{} ({}{})", stored_name(tensor.type),
                     fmt::join(tensor.shape.begin(),
                               tensor.shape.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < tensor.shape.size() ? ", ..." : "");
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_size,
                                           const std::string& origin) {
  if (!text.starts_with('{'))
    throw InputError({.where = origin, .reason = "header is not a JSON object"});
  if (const std::size_t null = find_null(text); null != std::string_view::npos) {
    throw InputError(
        {.where = origin,
         .reason = fmt::format("header is not a JSON object: error at byte {} of it", null + 1)});
  }
  HeaderBuilder builder(origin);
  json::sax_parse(text, &builder);
  SafetensorsHeader header = builder.take();
  for (const TensorPlace& place : header.tensors) {
    check_extent(place, data_size, fmt::format("{}: tensor '{}'", origin, place.tensor.name));
  }
  check_places(header.tensors, data_size, origin);
  return header;
}

std::string format_safetensors_header(const std::map<std::string, std::string>& metadata,
                                      const std::vector<TensorHeader>& tensors) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorHeader& tensor : tensors) {
    if (header.contains(tensor.name)) {  // nor "__metadata__"
      throw InputError(
          {.noun = "tensor", .key = tensor.name, .reason = "is to be written under a taken name"});
    }
    header[tensor.name] = {{"dtype", stored_name(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace fp8lab
