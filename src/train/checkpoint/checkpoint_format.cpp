#include "src/train/checkpoint/checkpoint_format.hpp"

#include <fmt/core.h>

#include "src/io/hash.hpp"

namespace fp8lab {

std::uint64_t checkpoint_header_hash(const std::map<std::string, std::string>& metadata,
                                     const std::vector<TensorHeader>& placed) {
  Xxh3Stream stream;
  const auto add = [&](const std::string& text) {
    stream.update(fmt::format("{}:{}", text.size(), text));
  };
  for (const auto& [key, value] : metadata) {
    add(key);
    add(value);
  }
  for (const TensorHeader& tensor : placed) {
    add(tensor.name);
    add(shape_text(tensor));
  }
  return stream.digest();
}

}  // namespace fp8lab
