// NumPy files: what is accepted must be written and read again without a change.
#include "src/io/tensors/npy.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::accept_error([&] {
    const NpyArray array = parse_npy(fuzz::text_of(data, size), "x.npy");
    const NpyArray reread = parse_npy(format_npy(array), "written");
    fuzz::require(reread.dtype == array.dtype && reread.rows == array.rows &&
                      reread.cols == array.cols && reread.dimensions == array.dimensions &&
                      reread.data == array.data,
                  "an array changes when it is written");
    fuzz::require(array.data.size() ==
                      static_cast<std::size_t>(array.rows * array.cols) * size_of(array.dtype),
                  "size and shape differ");
  });
  return 0;
}
