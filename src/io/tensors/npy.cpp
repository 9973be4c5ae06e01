#include "src/io/tensors/npy.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"

namespace fp8lab {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;

std::string_view descr_of(DType dtype) {
  switch (dtype) {
    case DType::u8: return "|u1";
    case DType::i32: return "<i4";
    case DType::bf16: return "<u2";
    case DType::f32: return "<f4";
    case DType::f64: return "<f8";
  }
  return "";
}

/// Parses the header, a Python dictionary literal with the keys descr, fortran_order and shape.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  struct Header {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::int64_t>> shape;
  };

  Header parse() {
    Header header;
    expect('{');
    while (!take('}')) {
      parse_entry(header);
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) fail("text after the closing '}'");
    if (!header.descr || !header.fortran_order || !header.shape) {
      fail("needs the keys 'descr', 'fortran_order' and 'shape'");
    }
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(
        {.where = origin_,
         .reason = fmt::format("malformed .npy header at byte {}: {}", position_, what)});
  }

  void skip_space() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) {
      ++position_;
    }
  }

  bool take(char wanted) {
    skip_space();
    if (position_ >= text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail(fmt::format("'{}' expected", wanted));
  }

  void parse_entry(Header& header) {
    const std::string key = parse_string();
    expect(':');
    if (key == "descr" && !header.descr) {
      header.descr = parse_descr();
    } else if (key == "fortran_order" && !header.fortran_order) {
      header.fortran_order = parse_bool();
    } else if (key == "shape" && !header.shape) {
      header.shape = parse_shape();
    } else {
      fail(fmt::format("unknown or repeated key '{}'", key));
    }
  }

  std::string parse_string() {
    skip_space();
    const char quote = position_ < text_.size() ? text_[position_] : '\0';
    if (quote != '\'' && quote != '"') fail("string expected");
    const std::size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) fail("string without an end");
    std::string value(text_.substr(position_ + 1, end - position_ - 1));
    if (value.find('\\') != std::string::npos) fail("escapes are not accepted");
    position_ = end + 1;
    return value;
  }

  std::string parse_descr() {
    skip_space();
    if (position_ < text_.size() && text_[position_] == '[') {
      throw InputError({.where = origin_,
                        .reason = "structured .npy types are not accepted; save one plain array"});
    }
    return parse_string();
  }

  bool parse_bool() {
    skip_space();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (text_.substr(position_).starts_with(word)) {
        position_ += std::strlen(word);
        return value;
      }
    }
    fail("True or False expected");
  }

  std::int64_t parse_integer() {
    skip_space();
    const std::size_t begin = position_;
    std::int64_t value = 0;
    for (; position_ < text_.size(); ++position_) {
      const char c = text_[position_];
      if (c < '0' || c > '9') break;
      if (__builtin_mul_overflow(value, std::int64_t{10}, &value) ||
          __builtin_add_overflow(value, std::int64_t{c - '0'}, &value)) {
        fail("a dimension does not fit into 64 bits");
      }
    }
    if (position_ == begin) fail("dimension expected");
    return value;
  }

  std::vector<std::int64_t> parse_shape() {
    std::vector<std::int64_t> shape;
    expect('(');
    while (!take(')')) {
      shape.push_back(parse_integer());
      if (take(',')) continue;
      if (shape.size() == 1) fail("',' expected after the only dimension");
      expect(')');
      break;
    }
    return shape;
  }

  std::string_view text_;
  const std::string& origin_;
  std::size_t position_ = 0;
};

DType dtype_of(const std::string& descr, const std::string& origin) {
  for (const DType dtype : {DType::u8, DType::i32, DType::bf16, DType::f32, DType::f64}) {
    if (descr == descr_of(dtype)) return dtype;
  }
  if (descr == "<u4") return DType::i32;
  if (descr.ends_with('O')) {
    throw InputError(
        {.where = origin,
         .reason = ".npy arrays of Python objects are not accepted (they are pickles)"});
  }
  throw InputError(
      {.where = origin,
       .noun = ".npy type",
       .found = quoted_word(descr),
       .reason = "is not accepted",
       .accepted = "'<f4', '|u1', '<i4', '<u4' (bits of i32) and '<u2' (bits of bf16)",
       .remedy = descr.find('f') == std::string::npos ? "" : "save x.astype('float32')"});
}

/// Splits the file into header text and data.
std::pair<std::string_view, std::string_view> split(std::string_view bytes,
                                                    const std::string& origin) {
  if (!bytes.starts_with(kMagic)) {
    throw InputError(
        {.where = origin, .reason = "not a .npy file (it does not begin with \\x93NUMPY)"});
  }
  const auto byte = [&](std::size_t i) -> std::size_t {
    if (i >= bytes.size())
      throw InputError(
          {.where = origin, .reason = "truncated .npy file: ends inside the preamble"});
    return static_cast<unsigned char>(bytes[i]);
  };
  const std::size_t major = byte(6);
  const std::size_t minor = byte(7);
  if ((major != 1 && major != 2) || minor != 0) {
    throw InputError({.where = origin,
                      .noun = ".npy format version",
                      .found = fmt::format("{}.{}", major, minor),
                      .reason = "is not accepted",
                      .accepted = "1.0, 2.0"});
  }
  std::size_t length = byte(8) | byte(9) << 8;
  if (major == 2) length |= byte(10) << 16 | byte(11) << 24;
  const std::size_t begin = major == 1 ? 10 : 12;
  if (length > bytes.size() - begin) {
    throw InputError(
        {.where = origin,
         .reason = fmt::format("truncated .npy file: the header needs {} bytes, {} are there",
                               length, bytes.size() - begin)});
  }
  return {bytes.substr(begin, length), bytes.substr(begin + length)};
}

}  // namespace

TensorView NpyArray::view() { return TensorView{data.data(), dtype, rows, cols, cols}; }

NpyArray parse_npy(std::string_view bytes, const std::string& origin) {
  const auto [header_text, data] = split(bytes, origin);
  const HeaderParser::Header header = HeaderParser(header_text, origin).parse();
  NpyArray array;
  array.dtype = dtype_of(*header.descr, origin);
  const std::vector<std::int64_t>& shape = *header.shape;
  if (*header.fortran_order) {
    throw InputError({.where = origin,
                      .reason = "Fortran order is not accepted; save numpy.ascontiguousarray(x)"});
  }
  if (shape.size() != 1 && shape.size() != 2) {
    throw InputError({.where = origin,
                      .noun = "the array has",
                      .found = fmt::format("{} dimensions", shape.size()),
                      .accepted = "1 and 2"});
  }
  array.dimensions = static_cast<int>(shape.size());
  array.rows = shape.size() == 2 ? shape[0] : 1;
  array.cols = shape.back();
  std::int64_t size = 0;
  if (__builtin_mul_overflow(array.rows, array.cols, &size) ||
      __builtin_mul_overflow(size, static_cast<std::int64_t>(size_of(array.dtype)), &size)) {
    throw InputError({.where = origin,
                      .reason = fmt::format("shape ({}, {}) overflows", array.rows, array.cols)});
  }
  if (static_cast<std::uint64_t>(size) != data.size()) {
    throw InputError({.where = origin,
                      .reason = fmt::format(
                          "{}: shape ({}, {}) of {} needs {} bytes of data, {} are there",
                          static_cast<std::uint64_t>(size) > data.size() ? "truncated .npy file"
                                                                         : "excess bytes",
                          array.rows, array.cols, name_of(array.dtype), size, data.size())});
  }
  array.data.resize(data.size());
  if (!data.empty()) std::memcpy(array.data.data(), data.data(), data.size());
  return array;
}

std::string format_npy(const NpyArray& array) {
  FP8LAB_ASSERT(array.dimensions == 2 || (array.dimensions == 1 && array.rows == 1));
  FP8LAB_ASSERT(static_cast<std::size_t>(array.rows * array.cols) * size_of(array.dtype) ==
                array.data.size());
  const std::string shape = array.dimensions == 1 ? fmt::format("({},)", array.cols)
                                                  : fmt::format("({}, {})", array.rows, array.cols);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                   descr_of(array.dtype), shape);
  const std::size_t preamble = kMagic.size() + 4;
  const std::size_t used = preamble + header.size() + 1;
  header.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  header += '\n';
  std::string bytes(kMagic);
  bytes += {'\x01', '\x00', static_cast<char>(header.size() & 0xff),
            static_cast<char>(header.size() >> 8)};
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(array.data.data()), array.data.size());
  return bytes;
}

NpyArray read_npy(const std::filesystem::path& path) {
  return parse_npy(read_file(path), path.string());
}

void write_npy(const std::filesystem::path& path, const NpyArray& array) {
  write_file_atomically(path, format_npy(array));
}

}  // namespace fp8lab
