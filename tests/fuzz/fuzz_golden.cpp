// Recorded vectors: tensor-core instructions and library GEMMs. The model replays what is accepted.
#include "src/validate/golden_file.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

constexpr std::uint32_t kLongest = 4096;  ///< K that is replayed

void replay(const MmaRecord& record) {
  const MmaModel model = mma_model(record);
  if (!model.known || record.k > kLongest || record.tiles.empty()) return;
  const MmaTile& tile = record.tiles.front();
  mma_element(model, record, tile.a.data(), tile.b.data(), tile.c.front());
}

void replay(const GemmRecord& record) {
  const GemmModel model = gemm_model(record);
  if (!model.known || record.k > kLongest || record.rows.empty() || record.cols.empty()) return;
  gemm_element(model, record, 0, 0);
  gemm_element(model, record, record.rows.size() - 1, record.cols.size() - 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::MemoryFile file;
  file.assign(data, size);
  fuzz::accept_error(
      [&] { read_mma_records(file.path(), [](const MmaRecord& record) { replay(record); }); });
  fuzz::accept_error(
      [&] { read_gemm_records(file.path(), [](const GemmRecord& record) { replay(record); }); });
  return 0;
}
