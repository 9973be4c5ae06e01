// Run files: a valid one, cut off or with bytes changed at places that the input chooses; or
// changed by HDF5 itself, so that every checksum is right: objects missing, of other types and
// extents, with other values. The first byte chooses.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "src/io/hdf5/hdf5.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/io/run_log_examples.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

struct ValidFile {
  std::vector<char> bytes;
  std::vector<std::string> datasets;
  std::vector<std::string> attributes;  ///< of /meta
};

/// Appends the datasets below `group`, "" for the root, by their paths. H5Ovisit has other
/// arguments in HDF5 1.14 than in 1.10.
void add_datasets(hid_t file, const std::string& group, std::vector<std::string>& datasets) {
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* names) -> herr_t {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  };
  std::vector<std::string> names;
  hsize_t position = 0;
  H5Literate_by_name(file, group.empty() ? "/" : group.c_str(), H5_INDEX_NAME, H5_ITER_INC,
                     &position, collect, &names, H5P_DEFAULT);
  for (const std::string& name : names) {
    const std::string path = group.empty() ? name : group + "/" + name;
    const hid_t object = H5Oopen(file, path.c_str(), H5P_DEFAULT);
    const H5I_type_t type = H5Iget_type(object);
    H5Oclose(object);
    if (type == H5I_DATASET) datasets.push_back(path);
    if (type == H5I_GROUP) add_datasets(file, path, datasets);
  }
}

ValidFile valid_file() {
  const ScratchDirectory scratch;
  const std::filesystem::path path = scratch / "run.h5";
  {
    RunMeta meta = example_meta();
    meta.recipe_text = "name = \"infir2\"\n";
    const auto log = RunLog::create(path, meta, example_tensors());
    for (std::int64_t step = 1; step <= 3; ++step) log->append(example_step(step));
    log->append(EvalRecord{3, 0, 1.5, 0.25, 8});
    log->append(ScoreRecord{3, 0, "pass@4", 0.5, 8});
    log->append(DocumentRecord{3, 0, false, 12345, 1, 0, 7, 30, 45.5});
    log->append(CheckpointRecord{3, 12345});
    log->append_tensors(2, {3, example_statistics(2, 0)}, {0, 1, 0});
    log->append_sample(2, "sample", {1.0f, 2.0f});
    log->complete(17);
  }
  ValidFile valid;
  std::ifstream stream(path, std::ios::binary);
  valid.bytes = {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  valid.attributes = Hdf5File::open(path).attribute_names("/meta");
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  add_datasets(file, "", valid.datasets);
  H5Fclose(file);
  return valid;
}

/// One of a few types, and a number of elements that may be 0 or many.
struct AnyType {
  explicit AnyType(fuzz::Choices& choices) {
    const hid_t kinds[] = {H5T_NATIVE_INT64, H5T_NATIVE_DOUBLE, H5T_NATIVE_UINT8, H5T_C_S1};
    type = H5Tcopy(kinds[choices.below(4)]);
    if (H5Tget_class(type) == H5T_STRING) H5Tset_size(type, 1 + choices.below(200));
    const hsize_t extent = choices.below(6);
    const hsize_t dims[] = {extent, 3, 8};
    const int rank = static_cast<int>(choices.below(4));
    space = rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, dims, nullptr);
  }
  AnyType(const AnyType&) = delete;
  AnyType& operator=(const AnyType&) = delete;
  ~AnyType() {
    H5Sclose(space);
    H5Tclose(type);
  }
  hid_t type = -1, space = -1;
};

/// Bytes of the elements of a space; more than `most` where they are, whose number may overflow.
std::size_t bytes_up_to(std::size_t most, hid_t space, std::size_t element) {
  hsize_t dims[H5S_MAX_RANK] = {};
  const int rank = H5Sget_simple_extent_dims(space, dims, nullptr);
  std::size_t bytes = element;
  for (int i = 0; i < rank; ++i) {
    if (dims[i] != 0 && bytes > most / dims[i]) return most + 1;
    bytes *= dims[i];
  }
  return bytes;
}

/// Every element of a dataset becomes the next bytes of the input.
void fill(hid_t dataset, fuzz::Choices& choices) {
  const hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
  const std::size_t size = H5Tget_size(type);
  constexpr std::size_t kMost = std::size_t{1} << 16;
  const std::size_t bytes = bytes_up_to(kMost, space, size);
  if (bytes <= kMost) {
    std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t) + 1);
    const auto word = choices.value<std::uint64_t>();
    std::fill(words.begin(), words.end(), word);
    H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, words.data());
  }
  H5Sclose(space);
  H5Tclose(type);
}

void change_dataset(hid_t file, const std::string& path, fuzz::Choices& choices) {
  const std::uint32_t how = choices.below(4);
  if (how <= 1) {
    H5Ldelete(file, path.c_str(), H5P_DEFAULT);
    if (how == 0) return;
    const AnyType any(choices);
    const hid_t made =
        H5Dcreate2(file, path.c_str(), any.type, any.space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    fill(made, choices);
    H5Dclose(made);
    return;
  }
  const hid_t dataset = H5Dopen2(file, path.c_str(), H5P_DEFAULT);
  if (dataset < 0) return;
  if (how == 2) {
    fill(dataset, choices);
  } else {
    const hid_t space = H5Dget_space(dataset);
    hsize_t dims[4] = {};
    H5Sget_simple_extent_dims(space, dims, nullptr);
    // HDF5 would look for every chunk when a huge extent shrinks again.
    constexpr hsize_t kSmall = 1000;
    if (dims[0] <= kSmall) {
      dims[0] = choices.below(2) == 0 ? choices.below(8) : choices.value<std::uint64_t>() >> 8;
      H5Dset_extent(dataset, dims);
    }
    H5Sclose(space);
  }
  H5Dclose(dataset);
}

void change_attribute(hid_t file, const std::string& name, fuzz::Choices& choices) {
  H5Adelete_by_name(file, "/meta", name.c_str(), H5P_DEFAULT);
  if (choices.below(2) == 0) return;
  const AnyType any(choices);
  const hid_t made = H5Acreate_by_name(file, "/meta", name.c_str(), any.type, any.space,
                                       H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  std::vector<std::uint64_t> words(4096, choices.value<std::uint64_t>());
  H5Awrite(made, any.type, words.data());
  H5Aclose(made);
}

void change(const ValidFile& valid, const std::string& path, fuzz::Choices& choices) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  fuzz::require(file >= 0, "the valid file does not open");
  for (int changes = 0; changes < 6 && !choices.empty(); ++changes) {
    const auto& names = choices.below(4) == 0 ? valid.attributes : valid.datasets;
    const std::string& name = names[choices.below(static_cast<std::uint32_t>(names.size()))];
    if (&names == &valid.attributes) {
      change_attribute(file, name, choices);
    } else {
      change_dataset(file, name, choices);
    }
  }
  H5Fclose(file);
}

std::vector<char> damaged(const ValidFile& valid, fuzz::Choices& choices) {
  std::vector<char> bytes = valid.bytes;
  if (choices.below(4) == 0) bytes.resize(choices.below(static_cast<std::uint32_t>(bytes.size())));
  for (int patches = 0; patches < 8 && !choices.empty() && !bytes.empty(); ++patches) {
    bytes[choices.below(static_cast<std::uint32_t>(bytes.size()))] = choices.value<char>();
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ValidFile valid = valid_file();
  static const ScratchDirectory scratch;  // HDF5 writes to no file without a name
  const std::filesystem::path path = scratch / "run.h5";
  fuzz::Choices choices(data, size);
  const bool bytes_change = choices.below(4) == 0;
  const std::vector<char> bytes = bytes_change ? damaged(valid, choices) : valid.bytes;
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!bytes_change) change(valid, path, choices);
  fuzz::accept_error([&] { read_run(path); });
  fuzz::accept_error([&] { read_run_status(path); });
  fuzz::accept_error([&] { read_statistic(path, "sqnr_db"); });
  fuzz::accept_error([&] { read_samples(path); });
  return 0;
}
