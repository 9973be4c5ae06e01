#include "src/io/tensors/npz.hpp"

#include <fmt/format.h>
#include <zip.h>

#include <cstdint>
#include <memory>

#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"

namespace fp8lab {
namespace {

constexpr std::uint64_t kMostDeflation = 1032;  // largest deflation ratio (zlib's manual)

struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* member) const { zip_fclose(member); }
};
using Archive = std::unique_ptr<zip_t, Discard>;
using Member = std::unique_ptr<zip_file_t, Discard>;

[[noreturn]] void fail(const std::string& origin, const std::string& what) {
  throw InputError({.where = origin, .reason = fmt::format("malformed .npz archive: {}", what)});
}

std::string text_of(zip_error_t& error) {
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

Archive open_archive(std::string_view bytes, const std::string& origin) {
  if (bytes.empty()) fail(origin, "it is empty");
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* const source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  if (source == nullptr) fail(origin, text_of(error));
  Archive archive(zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error));
  if (archive == nullptr) {
    zip_source_free(source);
    fail(origin, text_of(error));
  }
  zip_error_fini(&error);
  return archive;
}

/// Returns the bytes of a member. libzip compares their CRC-32 at the end.
std::string read_member(zip_t* archive, std::uint64_t index, const zip_stat_t& facts,
                        const std::string& origin) {
  const std::string name = facts.name;
  if (facts.size > kMostDeflation * facts.comp_size) {
    fail(origin,
         fmt::format("{}: {} bytes do not deflate to {}", name, facts.size, facts.comp_size));
  }
  const Member member(zip_fopen_index(archive, index, 0));
  if (member == nullptr) fail(origin, name + ": " + zip_strerror(archive));
  std::string data(facts.size + 1, '\0');  // libzip compares only at a read beyond the end
  std::uint64_t count = 0;
  while (count < data.size()) {
    const zip_int64_t got = zip_fread(member.get(), data.data() + count, data.size() - count);
    if (got < 0) fail(origin, name + ": " + zip_file_strerror(member.get()));
    if (got == 0) break;
    count += static_cast<std::uint64_t>(got);
  }
  if (count != facts.size) fail(origin, name + ": its size is another one");
  data.resize(facts.size);
  return data;
}

}  // namespace

const NpyArray* NpzArchive::find(std::string_view name) const {
  for (const auto& [known, array] : arrays_) {
    if (known == name) return &array;
  }
  return nullptr;
}

NpzArchive parse_npz(std::string_view bytes, const std::string& origin) {
  const Archive archive = open_archive(bytes, origin);
  std::vector<std::pair<std::string, NpyArray>> arrays;
  const zip_int64_t members = zip_get_num_entries(archive.get(), 0);
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(members); ++i) {
    zip_stat_t facts;
    if (zip_stat_index(archive.get(), i, 0, &facts) != 0) {
      fail(origin, zip_strerror(archive.get()));
    }
    const std::string file = facts.name;
    constexpr std::string_view kSuffix = ".npy";
    const std::string name =
        file.ends_with(kSuffix) ? file.substr(0, file.size() - kSuffix.size()) : file;
    const std::string where = fmt::format("{}: {}", origin, file);
    arrays.emplace_back(name, parse_npy(read_member(archive.get(), i, facts, origin), where));
  }
  return NpzArchive(std::move(arrays));
}

NpzArchive read_npz(const std::filesystem::path& path) {
  return parse_npz(read_file(path), path.string());
}

}  // namespace fp8lab
