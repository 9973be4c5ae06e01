// Reads recorded vectors: a bounds-checked reader and the records of mma.bin and gemm.bin.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "emulation/numerics/mma.hpp"
#include "emulation/numerics/schedule.hpp"

namespace fp8lab {

/// Reads a whole file in memory from front to back. Every failure is an Error with file and offset.
class GoldenReader {
 public:
  explicit GoldenReader(const std::filesystem::path& path);

  /// Throws unless the next four bytes are `magic`.
  void expect_magic(const char* magic);
  /// Throws unless the next u32 is 1.
  void expect_version();

  template <class T>
  T read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(1, sizeof(T)), sizeof(T));
    return value;
  }

  template <class T>
  std::vector<T> read_many(std::uint64_t count) {
    const std::uint8_t* source = take(count, sizeof(T));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), source, count * sizeof(T));
    return values;
  }

  /// Reads elements of 1, 2 or 4 bytes and widens them.
  std::vector<std::uint32_t> read_codes(std::uint64_t count, int bytes);
  /// Reads text padded with zero bytes.
  std::string read_text(std::size_t length);

  bool at_end() const { return offset_ == bytes_.size(); }
  std::uint64_t offset() const { return offset_; }
  std::uint64_t size() const { return bytes_.size(); }
  /// Throws InputError with file and offset.
  [[noreturn]] void fail(const std::string& reason, const std::string& accepted = "") const;

 private:
  const std::uint8_t* take(std::uint64_t count, std::uint64_t bytes_each);

  std::string path_;
  std::vector<std::uint8_t> bytes_;
  std::uint64_t offset_ = 0;
};

/// One tensor-core instruction: D = A B^T + C of 64x8 outputs.
struct MmaTile {
  std::vector<std::uint32_t> a;  // (64, k)
  std::vector<std::uint32_t> b;  // (8, k)
  std::vector<std::uint32_t> c;  // (64, 8)
  std::vector<std::uint32_t> d;  // (64, 8)
};

struct MmaRecord {
  std::string name;
  std::uint32_t op = 0, format_a = 0, format_b = 0, accumulator_bits = 0, k = 0;
  std::vector<MmaTile> tiles;
};

/// Rows and columns of one library GEMM.
struct GemmRecord {
  std::uint32_t m = 0, n = 0, k = 0, format_a = 0, format_b = 0, out = 0;
  std::uint32_t scale_mode_a = 0, scale_mode_b = 0, fast = 0, split_k = 0, has_bias = 0;
  float alpha = 1, beta = 0, output_scale = 1;
  std::string kernel;
  std::vector<std::uint32_t> rows, cols;     // indices in the full product
  std::uint32_t scales_a = 0, scales_b = 0;  // per row, per column
  std::vector<std::uint32_t> a, b;           // (rows, k), (cols, k)
  std::vector<float> sa, sb;                 // (rows, scales_a), (cols, scales_b)
  std::vector<float> c, bias;                // (rows, cols), (rows)
  std::vector<std::uint32_t> d;              // (rows, cols)
  bool has_c() const { return !c.empty(); }
};

/// Returns the format of code 0 e4m3, 1 e5m2, 2 bf16, 3 f16; nullptr for other codes.
const numerics::FormatSpec* golden_format(std::uint32_t code);

/// Calls `visit` for each record of an mma.bin; `progress` may be empty.
void read_mma_records(const std::filesystem::path& path,
                      const std::function<void(const MmaRecord&)>& visit,
                      const std::function<void(double)>& progress = {});

/// Calls `visit` for each record of a gemm.bin or gemm_edge.bin.
void read_gemm_records(const std::filesystem::path& path,
                       const std::function<void(const GemmRecord&)>& visit,
                       const std::function<void(double)>& progress = {});

/// The model of an instruction.
struct MmaModel {
  bool known = false;
  bool mma_sync_fp8 = false;
  numerics::GroupModel group;  ///< also identifies the accumulator of mma_sync_fp8
};

/// Returns the model of a record's op; unknown if op, formats, width and K are inconsistent.
MmaModel mma_model(const MmaRecord& record);

/// Returns the result bits of one output of the instruction.
std::uint32_t mma_element(const MmaModel& model, const MmaRecord& record, const std::uint32_t* a,
                          const std::uint32_t* b, std::uint32_t c);

/// The model of a GEMM record (emulation/specification.md, "Calls of cuBLASLt").
struct GemmModel {
  bool known = false;
  numerics::ElementGemm element;
  numerics::Epilogue epilogue;
};

/// Returns an unknown model for combinations that cuBLASLt refuses and for
/// splits with an empty range.
GemmModel gemm_model(const GemmRecord& record);

/// Returns the output bits of stored element (r, c).
std::uint32_t gemm_element(const GemmModel& model, const GemmRecord& record, std::size_t r,
                           std::size_t c);

}  // namespace fp8lab
