#include "src/io/hdf5/hdf5.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string_view>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/file_descriptor.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/files_read.hpp"
#include "src/io/files/missing_file.hpp"

#if defined(__SANITIZE_ADDRESS__)
/// Suppresses LeakSanitizer reports from HDF5: version 1.10 leaks memory on damaged files.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
#endif

namespace fp8lab {
namespace {

/// Returns file access properties for readers and writers: latest format, no HDF5 locks, and all
/// objects closed with the file.
Hdf5Handle access_properties(const Hdf5Status& status) {
  // Must come first. Owners close all handles, so HDF5 has nothing to do at exit; its exit handler
  // crashes if a file could not be closed because the disk is full.
  H5dont_atexit();
  // Errors are collected here and thrown; switch off HDF5's own printing.
  status.check(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr), "H5Eset_auto2");
  Hdf5Handle access = status.own(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "H5Pcreate");
  status.check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST),
               "H5Pset_libver_bounds");
  status.check(H5Pset_file_locking(access.get(), false, true), "H5Pset_file_locking");
  status.check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "H5Pset_fclose_degree");
  return access;
}

struct ErrorTrace {
  std::string innermost;  ///< HDF5's description of the innermost call
  std::string system;     ///< strerror text inside one of the descriptions, "" without
};

herr_t collect(unsigned depth, const H5E_error2_t* entry, void* data) {
  auto& trace = *static_cast<ErrorTrace*>(data);
  const std::string_view text = entry->desc == nullptr ? "" : entry->desc;
  if (depth == 0) trace.innermost = text;
  constexpr std::string_view kMark = "error message = '";
  const std::size_t mark = text.find(kMark);
  if (trace.system.empty() && mark != std::string_view::npos) {
    const std::string_view rest = text.substr(mark + kMark.size());
    trace.system = rest.substr(0, rest.find('\''));
  }
  return 0;
}

hid_t native_type(ElementType type) {
  switch (type) {
    case ElementType::u8: return H5T_NATIVE_UINT8;
    case ElementType::i32: return H5T_NATIVE_INT32;
    case ElementType::i64: return H5T_NATIVE_INT64;
    case ElementType::u64: return H5T_NATIVE_UINT64;
    case ElementType::f32: return H5T_NATIVE_FLOAT;
    case ElementType::f64: return H5T_NATIVE_DOUBLE;
    case ElementType::text: break;
  }
  return H5T_C_S1;
}

H5T_class_t class_of(ElementType type) {
  switch (type) {
    case ElementType::text: return H5T_STRING;
    case ElementType::f32:
    case ElementType::f64: return H5T_FLOAT;
    default: return H5T_INTEGER;
  }
}

Hdf5Handle element_type(const DatasetSpec& spec, const Hdf5Status& status) {
  Hdf5Handle type = status.own(H5Tcopy(native_type(spec.type)), H5Tclose, "H5Tcopy");
  if (spec.type == ElementType::text) {
    status.check(H5Tset_size(type.get(), spec.text_size), "H5Tset_size");
    status.check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "H5Tset_strpad");
    status.check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "H5Tset_cset");
  }
  return type;
}

void set_fill(const Hdf5Handle& properties, const DatasetSpec& spec, const Hdf5Status& status) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (spec.type == ElementType::text) return;
  const bool is_float = class_of(spec.type) == H5T_FLOAT;
  status.check(is_float ? H5Pset_fill_value(properties.get(), H5T_NATIVE_DOUBLE, &kNan)
                        : H5Pset_fill_value(properties.get(), H5T_NATIVE_INT64, &spec.fill),
               "H5Pset_fill_value", spec.path);
}

/// Keeps the links and attributes of a group in its header, which has a checksum. With more than
/// eight of them HDF5 would move them into a heap; h5py crashes on a damaged heap, and a text
/// beyond 4 KiB has no checksum there.
void keep_in_header(const Hdf5Handle& layout, const Hdf5Status& status) {
  constexpr unsigned kMost = 1000;
  status.check(H5Pset_link_phase_change(layout.get(), kMost, 0), "H5Pset_link_phase_change");
  status.check(H5Pset_attr_phase_change(layout.get(), kMost, 0), "H5Pset_attr_phase_change");
}

/// Aligns metadata so that a block of up to the kernel's page size lies within one page. A kill
/// ends a write at a page boundary; half a block of metadata fails its checksum, and the file
/// could not be opened again.
void keep_in_pages(const Hdf5Handle& layout, const Hdf5Status& status) {
  constexpr hsize_t kPageBytes = 4096;
  status.check(H5Pset_file_space_strategy(layout.get(), H5F_FSPACE_STRATEGY_PAGE, false, 1),
               "H5Pset_file_space_strategy");
  status.check(H5Pset_file_space_page_size(layout.get(), kPageBytes),
               "H5Pset_file_space_page_size");
}

/// Returns the rows of a chunk: about 512 bytes unless the spec says otherwise. Each flush
/// compresses a partly filled chunk again, and a SWMR writer cannot reuse the space of the old one.
/// (2000 steps, each flushed: 3 MB; with 4 KiB chunks 16 MB.)
std::int64_t chunk_rows_of(const DatasetSpec& spec) {
  constexpr std::size_t kTargetBytes = 512;
  if (spec.chunk_rows > 0) return spec.chunk_rows;
  const std::size_t rows = kTargetBytes / std::max<std::size_t>(spec.row_bytes(), 1);
  return static_cast<std::int64_t>(std::max<std::size_t>(rows, 1));
}

}  // namespace

void Hdf5Status::fail(const char* call, const std::string& object) const {
  ErrorTrace trace;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &trace);
  const std::string& reason = trace.system.empty() ? trace.innermost : trace.system;
  const std::string message =
      fmt::format("{}{}{}: {} failed: {}", file_, object.empty() ? "" : ":", object, call, reason);
  if (writing_ || !trace.system.empty()) throw RuntimeFailure(message);
  throw Error(message);
}

std::size_t DatasetSpec::element_size() const {
  switch (type) {
    case ElementType::u8: return 1;
    case ElementType::i32:
    case ElementType::f32: return 4;
    case ElementType::i64:
    case ElementType::u64:
    case ElementType::f64: return 8;
    case ElementType::text: return text_size;
  }
  return 0;
}

std::int64_t DatasetSpec::row_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : row_shape) count *= extent;
  return count;
}

// --- Hdf5Dataset --------------------------------------------------------------------------------

Hdf5Dataset::Hdf5Dataset(Hdf5Handle handle, DatasetSpec spec, Hdf5Status status)
    : handle_(std::move(handle)), spec_(std::move(spec)), status_(std::move(status)) {
  memory_type_ = element_type(spec_, status_);
  const Hdf5Handle space =
      status_.own(H5Dget_space(handle_.get()), H5Sclose, "H5Dget_space", spec_.path);
  std::vector<hsize_t> dims(spec_.row_shape.size() + 1);
  FP8LAB_ASSERT(H5Sget_simple_extent_ndims(space.get()) == static_cast<int>(dims.size()));
  status_.check(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr),
                "H5Sget_simple_extent_dims", spec_.path);
  rows_ = static_cast<std::int64_t>(dims[0]);
}

std::int64_t Hdf5Dataset::rows_per_chunk() const { return chunk_rows_of(spec_); }

std::vector<hsize_t> Hdf5Dataset::extent(std::int64_t rows) const {
  std::vector<hsize_t> dims{static_cast<hsize_t>(rows)};
  for (const std::int64_t extent : spec_.row_shape) dims.push_back(static_cast<hsize_t>(extent));
  return dims;
}

Hdf5Handle Hdf5Dataset::select(std::int64_t first, std::int64_t count) const {
  Hdf5Handle space = status_.own(H5Dget_space(handle_.get()), H5Sclose, "H5Dget_space", spec_.path);
  std::vector<hsize_t> start(spec_.row_shape.size() + 1, 0);
  start[0] = static_cast<hsize_t>(first);
  const std::vector<hsize_t> block = extent(count);
  status_.check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr,
                                    block.data(), nullptr),
                "H5Sselect_hyperslab", spec_.path);
  return space;
}

void Hdf5Dataset::append(const void* elements, std::int64_t count) {
  if (count == 0) return;
  const std::vector<hsize_t> dims = extent(rows_ + count);
  status_.check(H5Dset_extent(handle_.get(), dims.data()), "H5Dset_extent", spec_.path);
  rows_ += count;
  write(elements, rows_ - count, count);
}

void Hdf5Dataset::write(const void* elements, std::int64_t first, std::int64_t count) {
  FP8LAB_ASSERT(first >= 0 && count >= 0 && first + count <= rows_);
  if (count == 0 || spec_.row_bytes() == 0) return;
  const Hdf5Handle file_space = select(first, count);
  const std::vector<hsize_t> dims = extent(count);
  const Hdf5Handle memory_space =
      status_.own(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose,
                  "H5Screate_simple", spec_.path);
  status_.check(H5Dwrite(handle_.get(), memory_type_.get(), memory_space.get(), file_space.get(),
                         H5P_DEFAULT, elements),
                "H5Dwrite", spec_.path);
}

void Hdf5Dataset::read(void* elements, std::int64_t first, std::int64_t count) const {
  FP8LAB_ASSERT(first >= 0 && count >= 0 && first + count <= rows_);
  if (count == 0 || spec_.row_bytes() == 0) return;
  const Hdf5Handle file_space = select(first, count);
  const std::vector<hsize_t> dims = extent(count);
  const Hdf5Handle memory_space =
      status_.own(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose,
                  "H5Screate_simple", spec_.path);
  status_.check(H5Dread(handle_.get(), memory_type_.get(), memory_space.get(), file_space.get(),
                        H5P_DEFAULT, elements),
                "H5Dread", spec_.path);
}

// --- Hdf5File: opening --------------------------------------------------------------------------

namespace {

/// Returns true if the superblock (version 2 or 3) says that no writer has the file open.
bool is_marked_closed(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 12> superblock{};
  return file.read(superblock.data(), superblock.size()) && superblock[8] >= 2 &&
         superblock[11] == 0;
}

/// Throws Error if the file ends before its last allocated byte: HDF5 1.14 opens such a file for a
/// SWMR reader, since a writer may be about to extend it. Releases `id` then.
void require_whole(hid_t id, const std::filesystem::path& path, const Hdf5Status& status) {
  haddr_t end = 0;
  const herr_t known = H5Fget_eoa(id, &end);
  const std::uintmax_t size = std::filesystem::file_size(path);
  if (known >= 0 && size >= end) return;
  H5Fclose(id);
  status.check(known, "H5Fget_eoa");
  throw InputError({.where = path.string(),
                    .reason = fmt::format("truncated: {} of {} bytes are there", size, end)});
}

}  // namespace

Hdf5File::Hdf5File(Hdf5Handle handle, Hdf5Status status)
    : handle_(std::move(handle)), status_(std::move(status)) {}

Hdf5File Hdf5File::create(const std::filesystem::path& path,
                          const std::filesystem::path& shown_as) {
  const Hdf5Status status(shown_as.string(), true);
  // Removes the leftover of a killed process; if it is a link, its target is left unchanged.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    throw RuntimeFailure(fmt::format("{}: cannot replace: {}", path.string(), error_text(errno)));
  }
  const Hdf5Handle access = access_properties(status);
  const Hdf5Handle layout = status.own(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "H5Pcreate");
  keep_in_header(layout, status);
  keep_in_pages(layout, status);
  Hdf5Handle file = status.own(H5Fcreate(path.c_str(), H5F_ACC_EXCL, layout.get(), access.get()),
                               H5Fclose, "H5Fcreate");
  return Hdf5File(std::move(file), status);
}

Hdf5File Hdf5File::open(const std::filesystem::path& path) {
  const Hdf5Status status(path.string(), false);
  if (::access(path.c_str(), R_OK) != 0) {
    throw InputError({.where = path.string(), .reason = why_not_opened(path, errno)});
  }
  if (is_folder(path)) {
    throw InputError(
        {.where = path.string(), .reason = "is a directory, an HDF5 file is expected"});
  }
  note_file_read(path);
  const Hdf5Handle access = access_properties(status);
  if (H5Fis_hdf5(path.c_str()) <= 0)
    throw InputError({.where = path.string(), .reason = "not an HDF5 file"});
  // Try a plain open first, which succeeds if no writer holds the file and none was killed. A SWMR
  // reader takes damaged metadata for half-written ones and rereads them many times.
  hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
  if (id < 0) {
    // The wait between attempts doubles each time, from 1 ns on. HDF5's default of 100 attempts
    // never ends on a damaged file; these take half a second.
    constexpr unsigned kReadAttempts = 28;
    status.check(H5Pset_metadata_read_attempts(access.get(), kReadAttempts),
                 "H5Pset_metadata_read_attempts");
    id = H5Fopen(path.c_str(), H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, access.get());
    if (id >= 0 && is_marked_closed(path)) require_whole(id, path, status);
  }
  return Hdf5File(status.own(id, H5Fclose, "H5Fopen"), status);
}

bool Hdf5File::was_closed(const std::filesystem::path& path) {
  const Hdf5Status status(path.string(), false);
  const Hdf5Handle access = access_properties(status);
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  return file.valid();
}

std::vector<std::string> Hdf5File::link_names(const std::string& group) const {
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* data) -> herr_t {
    static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
  if (!has(group))
    throw InputError({.where = name(), .reason = fmt::format("{} is missing", group)});
  std::vector<std::string> names;
  hsize_t position = 0;
  status_.check(H5Literate_by_name(handle_.get(), group.c_str(), H5_INDEX_NAME, H5_ITER_INC,
                                   &position, collect, &names, H5P_DEFAULT),
                "H5Literate_by_name", group);
  return names;
}

void Hdf5File::start_swmr() {
  status_.check(H5Fstart_swmr_write(handle_.get()), "H5Fstart_swmr_write");
}

int Hdf5File::descriptor() const {
  void* descriptor = nullptr;
  status_.check(H5Fget_vfd_handle(handle_.get(), H5P_DEFAULT, &descriptor), "H5Fget_vfd_handle");
  return *static_cast<int*>(descriptor);
}

off_t Hdf5File::end() const {
  hsize_t size = 0;
  status_.check(H5Fget_filesize(handle_.get(), &size), "H5Fget_filesize");
  return static_cast<off_t>(size);
}

void Hdf5File::reserve(std::size_t bytes) {
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(descriptor(), end(), static_cast<off_t>(bytes));
  }
  if (error == 0) return;
  // Returns the disk space that was allocated before the space ran out.
  const bool given_back = ::ftruncate(descriptor(), end()) == 0;
  throw RuntimeFailure(fmt::format("{}: cannot grow by {} bytes: {}{}", name(), bytes,
                                   error_text(error),
                                   given_back ? "" : "; nor could it be cut back to its end"));
}

void Hdf5File::flush() {
  status_.check(H5Fflush(handle_.get(), H5F_SCOPE_GLOBAL), "H5Fflush");
  struct stat status {};
  if (::fstat(descriptor(), &status) == 0 && status.st_size > end() &&
      ::ftruncate(descriptor(), end()) != 0) {
    throw RuntimeFailure(fmt::format("{}: cannot truncate: {}", name(), error_text(errno)));
  }
}

void Hdf5File::close() { status_.check(handle_.close(), "H5Fclose"); }

// --- Hdf5File: objects --------------------------------------------------------------------------

void Hdf5File::create_group(const std::string& path) {
  const Hdf5Handle layout = status_.own(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "H5Pcreate", path);
  keep_in_header(layout, status_);
  status_.own(H5Gcreate2(handle_.get(), path.c_str(), H5P_DEFAULT, layout.get(), H5P_DEFAULT),
              H5Gclose, "H5Gcreate2", path);
}

void Hdf5File::link_external(const std::string& path, const std::string& file,
                             const std::string& object) {
  status_.check(H5Lcreate_external(file.c_str(), object.c_str(), handle_.get(), path.c_str(),
                                   H5P_DEFAULT, H5P_DEFAULT),
                "H5Lcreate_external", path);
}

Hdf5Dataset Hdf5File::create_extendable(const DatasetSpec& spec) {
  return create_dataset(spec, 0, true);
}

Hdf5Dataset Hdf5File::create_fixed(const DatasetSpec& spec, std::int64_t rows) {
  return create_dataset(spec, rows, false);
}

Hdf5Dataset Hdf5File::create_dataset(const DatasetSpec& spec, std::int64_t rows, bool extendable) {
  std::vector<hsize_t> dims{static_cast<hsize_t>(rows)};
  std::vector<hsize_t> limits{extendable ? H5S_UNLIMITED : std::max<hsize_t>(dims[0], 1)};
  std::vector<hsize_t> chunk{static_cast<hsize_t>(chunk_rows_of(spec))};
  for (const std::int64_t extent : spec.row_shape) {
    dims.push_back(static_cast<hsize_t>(extent));
    // A chunk needs at least one element and must not exceed the limit.
    chunk.push_back(std::max<hsize_t>(dims.back(), 1));
    limits.push_back(extendable ? chunk.back() : dims.back());
  }
  const int rank = static_cast<int>(dims.size());
  const Hdf5Handle space = status_.own(H5Screate_simple(rank, dims.data(), limits.data()), H5Sclose,
                                       "H5Screate_simple", spec.path);
  const Hdf5Handle properties =
      status_.own(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "H5Pcreate", spec.path);
  set_fill(properties, spec, status_);
  if (!extendable) chunk[0] = limits[0];
  status_.check(H5Pset_chunk(properties.get(), rank, chunk.data()), "H5Pset_chunk", spec.path);
  // Deflate is needed for integrity: the Fletcher-32 sum of a chunk zeroed on disk would be
  // correct, but zeros are not a deflated chunk.
  status_.check(H5Pset_shuffle(properties.get()), "H5Pset_shuffle", spec.path);
  status_.check(H5Pset_deflate(properties.get(), 4), "H5Pset_deflate", spec.path);
  status_.check(H5Pset_fletcher32(properties.get()), "H5Pset_fletcher32", spec.path);
  const Hdf5Handle type = element_type(spec, status_);
  Hdf5Handle dataset =
      status_.own(H5Dcreate2(handle_.get(), spec.path.c_str(), type.get(), space.get(), H5P_DEFAULT,
                             properties.get(), H5P_DEFAULT),
                  H5Dclose, "H5Dcreate2", spec.path);
  set_attribute(spec.path, "units", spec.units);
  set_attribute(spec.path, "description", spec.description);
  if (!spec.te_name.empty()) {
    set_attribute(spec.path, "te_name", spec.te_name);
    set_attribute(spec.path, "te_factor", spec.te_factor);
  }
  return Hdf5Dataset(std::move(dataset), spec, status_);
}

bool Hdf5File::has(const std::string& path) const {
  // H5Lexists requires every parent group to exist.
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    // An error from a damaged group must not be taken for a missing link.
    if (status_.check(H5Lexists(handle_.get(), part.c_str(), H5P_DEFAULT), "H5Lexists", part) ==
        0) {
      return false;
    }
    check_link(part);
    if (slash == std::string::npos) return true;
  }
}

void Hdf5File::check_link(const std::string& path) const {
  H5L_info_t link{};
  if (path == "/") return;
  status_.check(H5Lget_info(handle_.get(), path.c_str(), &link, H5P_DEFAULT), "H5Lget_info", path);
  if (link.type == H5L_TYPE_HARD) return;
  throw InputError({.where = name(),
                    .reason = fmt::format("{} is a link to another {}, which is not followed", path,
                                          link.type == H5L_TYPE_EXTERNAL ? "file" : "name"),
                    .accepted = "groups and datasets of the file itself"});
}

void Hdf5File::check_storage(const Hdf5Handle& dataset, const std::string& path) const {
  const Hdf5Handle properties =
      status_.own(H5Dget_create_plist(dataset.get()), H5Pclose, "H5Dget_create_plist", path);
  const bool outside =
      H5Pget_external_count(properties.get()) > 0 || H5Pget_layout(properties.get()) == H5D_VIRTUAL;
  if (!outside) return;
  throw InputError(
      {.where = name(),
       .reason = fmt::format("{} keeps its rows in another file, which is not read", path),
       .accepted = "datasets of the file itself"});
}

void Hdf5File::read_rows(const std::string& path) const {
  const Hdf5Handle dataset =
      status_.own(H5Dopen2(handle_.get(), path.c_str(), H5P_DEFAULT), H5Dclose, "H5Dopen2", path);
  check_storage(dataset, path);
  const Hdf5Handle type = status_.own(H5Dget_type(dataset.get()), H5Tclose, "H5Dget_type", path);
  const Hdf5Handle space = status_.own(H5Dget_space(dataset.get()), H5Sclose, "H5Dget_space", path);
  const hssize_t elements = H5Sget_simple_extent_npoints(space.get());
  constexpr hssize_t kMost = hssize_t{1} << 40;
  const auto size = static_cast<hssize_t>(H5Tget_size(type.get()));
  if (elements < 0 || size <= 0 || elements > kMost / size ||
      static_cast<hsize_t>(elements * size) / 2048 >
          H5Dget_storage_size(dataset.get()) + (hsize_t{1} << 20) / 2048) {
    throw InputError({.where = name(),
                      .reason = fmt::format("{} claims {} elements, far more than the file holds",
                                            path, elements)});
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements * size));
  if (bytes.empty()) return;
  status_.check(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()),
                "H5Dread", path);
  if (H5Tis_variable_str(type.get()) > 0) {
    H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, bytes.data());
  }
}

void Hdf5File::read_everything(const std::string& group, int depth) const {
  constexpr int kDeepest = 16;  // limit of the recursion: a damaged link may lead to a parent group
  if (depth > kDeepest)
    throw InputError({.where = name(), .reason = "groups are nested in themselves"});
  attribute_names(group);  // verifies the checksum of the header that holds them
  for (const std::string& link : link_names(group)) {
    const std::string path = group == "/" ? "/" + link : group + "/" + link;
    H5L_info_t info{};
    status_.check(H5Lget_info(handle_.get(), path.c_str(), &info, H5P_DEFAULT), "H5Lget_info",
                  path);
    if (info.type != H5L_TYPE_HARD) continue;
    const Hdf5Handle object =
        status_.own(H5Oopen(handle_.get(), path.c_str(), H5P_DEFAULT), H5Oclose, "H5Oopen", path);
    if (H5Iget_type(object.get()) == H5I_GROUP) {
      read_everything(path, depth + 1);
    } else {
      attribute_names(path);
      read_rows(path);
    }
  }
}

Hdf5Dataset Hdf5File::open_dataset(const DatasetSpec& spec) const {
  const auto refuse = [&](const std::string& what) {
    throw InputError({.where = name(), .key = spec.path, .reason = what});
  };
  if (!has(spec.path)) refuse("is missing");
  Hdf5Handle dataset = status_.own(H5Dopen2(handle_.get(), spec.path.c_str(), H5P_DEFAULT),
                                   H5Dclose, "H5Dopen2", spec.path);
  check_storage(dataset, spec.path);
  const Hdf5Handle type = status_.own(H5Dget_type(dataset.get()), H5Tclose, "H5Dget_type");
  DatasetSpec found = spec;
  if (H5Tget_class(type.get()) != class_of(spec.type)) refuse("has another type");
  if (spec.type == ElementType::text) {
    if (H5Tis_variable_str(type.get()) != 0) refuse("has strings of variable length");
    found.text_size = H5Tget_size(type.get());
  } else if (H5Tget_size(type.get()) > spec.element_size()) {
    refuse("has another type");
  }
  const Hdf5Handle space = status_.own(H5Dget_space(dataset.get()), H5Sclose, "H5Dget_space");
  std::vector<hsize_t> dims(spec.row_shape.size() + 1);
  if (H5Sget_simple_extent_ndims(space.get()) != static_cast<int>(dims.size())) {
    refuse("has another number of dimensions");
  }
  H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr);
  for (std::size_t i = 0; i < spec.row_shape.size(); ++i) {
    if (dims[i + 1] != static_cast<hsize_t>(spec.row_shape[i])) refuse("has another shape");
  }
  // Deflate shrinks data at most about 1000-fold: a larger claim is a damaged header, not data.
  // Unwritten rows hold the fill value; the memory of their records is several times larger.
  constexpr hsize_t kHarmless = hsize_t{1} << 20;
  hsize_t bytes = 0;
  if (__builtin_mul_overflow(dims[0], static_cast<hsize_t>(found.row_bytes()), &bytes) ||
      (bytes > kHarmless && bytes / 2048 > H5Dget_storage_size(dataset.get()))) {
    refuse(fmt::format("claims {} rows, far more than the file holds", dims[0]));
  }
  return Hdf5Dataset(std::move(dataset), found, status_);
}

}  // namespace fp8lab
