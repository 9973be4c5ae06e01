#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "emulation/base/error.hpp"
#include "src/io/tensors/npy.hpp"
#include "tests/error_fields.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;
using Catch::Contains;

namespace {

/// A version 1.0 file with this header, not aligned.
std::string file_with(const std::string& header, std::size_t data_bytes, char major = 1) {
  std::string bytes = "\x93NUMPY";
  bytes +=
      {major, 0, static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  if (major == 2) bytes += std::string(2, '\0');
  return bytes + header + std::string(data_bytes, '\x01');
}

std::string header_with(const std::string& descr, const std::string& order,
                        const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

std::string message_for(const std::string& bytes) {
  try {
    parse_npy(bytes, "x.npy");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("npy: every type and both ranks survive a round trip") {
  const ScratchDirectory scratch;
  const auto dtype = GENERATE(DType::u8, DType::i32, DType::bf16, DType::f32, DType::f64);
  const auto dimensions = GENERATE(1, 2);
  NpyArray array;
  array.dtype = dtype;
  array.dimensions = dimensions;
  array.rows = dimensions == 1 ? 1 : 3;
  array.cols = 5;
  array.data.resize(static_cast<std::size_t>(array.rows * array.cols) * size_of(dtype));
  for (std::size_t i = 0; i < array.data.size(); ++i)
    array.data[i] = static_cast<std::byte>(i * 37);
  write_npy(scratch / "x.npy", array);
  const NpyArray back = read_npy(scratch / "x.npy");
  CHECK(back.dtype == dtype);
  CHECK(back.dimensions == dimensions);
  CHECK(back.rows == array.rows);
  CHECK(back.cols == array.cols);
  CHECK(back.data == array.data);
}

TEST_CASE("npy: bytes are those that NumPy 1.24 writes for float32 [[1, 2]]") {
  NpyArray array{DType::f32, 1, 2, {}, 2};
  const float values[2] = {1.0f, 2.0f};
  array.data.resize(sizeof values);
  std::memcpy(array.data.data(), values, sizeof values);
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";
  header.resize(117, ' ');
  expected += header + "\n" + std::string("\x00\x00\x80\x3f\x00\x00\x00\x40", 8);
  CHECK(format_npy(array) == expected);
  CHECK(array.view().row<float>(0)[1] == 2.0f);
}

TEST_CASE("npy: accepted variations of the header") {
  CHECK(parse_npy(file_with(header_with("'<f4'", "False", "(2, 3)"), 24), "x").rows == 2);
  CHECK(parse_npy(file_with(header_with("'<f4'", "False", "(2, 3)"), 24, 2), "x").cols == 3);
  CHECK(parse_npy(file_with(header_with("\"<f8\"", "False", "(3,)"), 24), "x").cols == 3);
  CHECK(parse_npy(file_with(header_with("'|u1'", "False", "(0, 7)"), 0), "x").data.empty());
  CHECK(parse_npy(file_with("{'shape':(1,2),'fortran_order':False,'descr':'<u2'}", 4), "x").dtype ==
        DType::bf16);
}

TEST_CASE("npy: malformed files are refused with the reason") {
  const std::string good = header_with("'<f4'", "False", "(2, 3)");
  const auto with_shape = [](const std::string& shape) {
    return file_with(header_with("'<f4'", "False", shape), 24);
  };
  const auto with_descr = [](const std::string& descr) {
    return file_with(header_with(descr, "False", "(2, 3)"), 24);
  };
  const std::vector<std::pair<std::string, ErrorFields>> cases = {
      {"", {.reason = "not a .npy file"}},
      {"\x93NUMPX\x01", {.reason = "not a .npy file"}},
      {"\x93NUMPY", {.reason = "truncated .npy file"}},
      {std::string("\x93NUMPY\x01\x00\x10", 9), {.reason = "truncated .npy file"}},
      {file_with(good, 24).substr(0, 30), {.reason = "truncated .npy file: the header needs"}},
      {file_with(good, 24, 3),
       {.noun = ".npy format version", .found = "3.0", .accepted = "1.0, 2.0"}},
      {file_with(good, 23),
       {.reason = "truncated .npy file: shape (2, 3) of f32 needs 24 bytes of data, 23"}},
      {file_with(good, 25), {.reason = "excess bytes"}},
      {file_with(header_with("'<f4'", "True", "(2, 3)"), 24),
       {.reason = "Fortran order is not accepted"}},
      {with_descr("'|O'"), {.reason = "Python objects are not accepted"}},
      {with_descr("[('a', '<f4')]"), {.reason = "structured .npy types are not accepted"}},
      {with_descr("'>f4'"), {.noun = ".npy type", .found = "'>f4'", .accepted = "'<f4'"}},
      {with_descr("'<f2'"), {.noun = ".npy type", .found = "'<f2'", .accepted = "'<f4'"}},
      {with_descr("'<c8'"), {.noun = ".npy type", .found = "'<c8'", .accepted = "'<f4'"}},
      {with_shape("()"), {.noun = "the array has", .found = "0 dimensions", .accepted = "1 and 2"}},
      {with_shape("(1, 2, 3)"),
       {.noun = "the array has", .found = "3 dimensions", .accepted = "1 and 2"}},
      {with_shape("(6)"), {.reason = "',' expected after the only dimension"}},
      {with_shape("(-2, 3)"), {.reason = "dimension expected"}},
      {with_shape("(2.5, 3)"), {.reason = "',' expected after the only dimension"}},
      {with_shape("(2 3)"), {.reason = "',' expected"}},
      {with_shape("(2, 3"), {.reason = "dimension expected"}},
      {with_shape("(99999999999999999999, 1)"), {.reason = "does not fit into 64 bits"}},
      {with_shape("(4611686018427387904, 4)"), {.reason = "overflows"}},
      {with_shape("(4611686018427387904, 1)"), {.reason = "overflows"}},
      {file_with("{'descr': '<f4', 'shape': (2, 3)}", 24), {.reason = "needs the keys"}},
      {file_with("{'descr': '<f4', 'descr': '<f4'}", 24),
       {.reason = "unknown or repeated key 'descr'"}},
      {file_with("{'colour': 'red'}", 24), {.reason = "unknown or repeated key 'colour'"}},
      {file_with(good + "garbage", 24), {.reason = "text after the closing"}},
      {file_with("{'descr': '<f4", 24), {.reason = "string without an end"}},
      {file_with("{'descr': '<\\x664'}", 24), {.reason = "escapes are not accepted"}},
      {file_with("[]", 24), {.reason = "'{' expected"}},
      {file_with("", 24), {.reason = "'{' expected"}},
      {file_with(header_with("'<f4'", "0", "(2, 3)"), 24), {.reason = "True or False expected"}},
  };
  for (const auto& [bytes, expected] : cases) {
    const ErrorFields fields = fields_thrown_by([&] { parse_npy(bytes, "x.npy"); });
    CHECK(fields.where == "x.npy");
    check_fields(fields, expected);
  }
}

TEST_CASE("npy: every truncation and every changed header byte is refused or a valid array") {
  const std::string good = file_with(header_with("'<f4'", "False", "(2, 3)"), 24);
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK(message_for(good.substr(0, size)) != "accepted");
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = good;
      changed[i] = static_cast<char>(value);
      try {
        const NpyArray array = parse_npy(changed, "x");
        REQUIRE(array.data.size() ==
                static_cast<std::size_t>(array.rows * array.cols) * size_of(array.dtype));
      } catch (const Error&) {
        SUCCEED();
      }
    }
  }
}
