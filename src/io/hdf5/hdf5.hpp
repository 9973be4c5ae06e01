// RAII wrapper of the HDF5 C API (1.10): checks every status and reports
// failures with call and file.
//
// Read failures throw Error (the file is not as it should be). Write failures and refusals of the
// system throw RuntimeFailure (the disk failed). The library's own error printing is switched off.
// HDF5 is not thread-safe: call all functions from one thread. HDF5's own file locks are not used,
// since it drops them once SWMR starts; FileLock replaces them.
#pragma once

#include <hdf5.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace fp8lab {

/// Owns an HDF5 identifier and releases it with the matching function.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close release) : id_(id), close_(release) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() { close(); }

  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  /// Releases the identifier; returns a negative value if HDF5 refuses.
  herr_t close() { return valid() ? close_(std::exchange(id_, H5I_INVALID_HID)) : 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// Converts the statuses of calls on one file into exceptions.
class Hdf5Status {
 public:
  Hdf5Status() = default;
  Hdf5Status(std::string file, bool writing) : file_(std::move(file)), writing_(writing) {}

  /// Throws if `result` (hid_t, herr_t, htri_t, ssize_t) is negative, else returns it.
  template <class T>
  T check(T result, const char* call, const std::string& object = {}) const {
    if (result < 0) fail(call, object);
    return result;
  }
  /// Like `check` for calls that create an identifier; returns it with an owner.
  Hdf5Handle own(hid_t id, Hdf5Handle::Close close, const char* call,
                 const std::string& object = {}) const {
    return Hdf5Handle(check(id, call, object), close);
  }
  const std::string& file() const { return file_; }

 private:
  [[noreturn]] void fail(const char* call, const std::string& object) const;
  std::string file_;
  bool writing_ = false;
};

enum class ElementType : std::uint8_t { u8, i32, i64, u64, f32, f64, text };

/// A dataset: rows along the first axis, `row_shape` elements per row.
struct DatasetSpec {
  std::string path;
  ElementType type = ElementType::f64;
  std::vector<std::int64_t> row_shape{};
  std::string units{};
  std::string description{};
  std::string te_name{};        ///< name of the statistic in TransformerEngine's debug output
  double te_factor = 1.0;       ///< value * te_factor is TransformerEngine's value
  std::size_t text_size = 0;    ///< bytes of one string, for text only; zero-padded UTF-8
  std::int64_t fill = 0;        ///< fill value of unwritten integers; floats use NaN
  std::int64_t chunk_rows = 0;  ///< if extendable; 0: for small rows, often flushed

  std::size_t element_size() const;
  std::int64_t row_elements() const;
  std::size_t row_bytes() const {
    return static_cast<std::size_t>(row_elements()) * element_size();
  }
};

/// An open dataset. Elements in memory have the types of its DatasetSpec and are packed row by row.
class Hdf5Dataset {
 public:
  Hdf5Dataset(Hdf5Handle handle, DatasetSpec spec, Hdf5Status status);

  const DatasetSpec& spec() const { return spec_; }
  std::int64_t rows() const { return rows_; }
  /// Precondition: the dataset is extendable.
  std::int64_t rows_per_chunk() const;
  std::size_t chunk_bytes() const {
    return static_cast<std::size_t>(rows_per_chunk()) * spec_.row_bytes();
  }
  /// Appends `count` rows to an extendable dataset.
  void append(const void* elements, std::int64_t count);
  /// Overwrites existing rows.
  void write(const void* elements, std::int64_t first, std::int64_t count);
  void read(void* elements, std::int64_t first, std::int64_t count) const;

 private:
  Hdf5Handle select(std::int64_t first, std::int64_t count) const;
  std::vector<hsize_t> extent(std::int64_t rows) const;
  Hdf5Handle handle_;
  DatasetSpec spec_;
  Hdf5Status status_;
  Hdf5Handle memory_type_;
  std::int64_t rows_ = 0;
};

class Hdf5File {
 public:
  /// Creates a file in the latest format, which SWMR needs. Replaces an existing file. Messages
  /// name the file `shown_as`, because it will be renamed.
  static Hdf5File create(const std::filesystem::path& path, const std::filesystem::path& shown_as);
  /// Opens a file for reading, also while a SWMR writer has it open or after
  /// such a writer was killed.
  static Hdf5File open(const std::filesystem::path& path);

  /// Returns false for a file whose writer was killed or is still writing: other programs can open
  /// such a file only as SWMR readers.
  static bool was_closed(const std::filesystem::path& path);

  void create_group(const std::string& path);
  /// Creates a link `path` to `object` of another file, whose name may be relative
  /// to this file's directory.
  void link_external(const std::string& path, const std::string& file, const std::string& object);

  /// Creates a dataset with zero rows and an unlimited first axis: chunked, shuffled, deflated, and
  /// with a Fletcher-32 checksum per chunk, so that reading a chunk with a flipped bit fails.
  Hdf5Dataset create_extendable(const DatasetSpec& spec);
  /// Creates a dataset of exactly `rows` rows in one such chunk.
  Hdf5Dataset create_fixed(const DatasetSpec& spec, std::int64_t rows);
  /// Opens a dataset. Throws Error if it is missing, stores its rows in another file, or has
  /// another rank, row shape or kind of type. The strings of a text dataset may have any length;
  /// the returned spec states it.
  Hdf5Dataset open_dataset(const DatasetSpec& spec) const;
  /// Returns true if `path` exists. Throws Error if a link on the way leads to another
  /// file, or to another name in this one: in a file from a stranger, such links could
  /// expose files of the reader.
  bool has(const std::string& path) const;
  /// Reads every attribute and every row of every dataset, and thereby verifies every checksum.
  /// Throws Error if anything cannot be read.
  void read_everything() const { read_everything("/", 0); }

  void set_attribute(const std::string& object, const std::string& name, const std::string& value);
  void set_attribute(const std::string& object, const std::string& name, std::int64_t value);
  void set_attribute(const std::string& object, const std::string& name, std::uint64_t value);
  void set_attribute(const std::string& object, const std::string& name, double value);
  void set_attribute(const std::string& object, const std::string& name,
                     const std::vector<std::string>& values);
  std::string text_attribute(const std::string& object, const std::string& name) const;
  std::int64_t integer_attribute(const std::string& object, const std::string& name) const;
  double number_attribute(const std::string& object, const std::string& name) const;
  std::uint64_t unsigned_attribute(const std::string& object, const std::string& name) const;
  std::vector<std::string> list_attribute(const std::string& object, const std::string& name) const;
  bool has_attribute(const std::string& object, const std::string& name) const;
  std::vector<std::string> attribute_names(const std::string& object) const;
  /// Returns the names of the links in a group, sorted.
  std::vector<std::string> link_names(const std::string& group) const;
  /// Adds an attribute "checksum" over the other attributes of `object`, texts and integers, which
  /// HDF5 itself does not protect: SHA-256 of netstrings ("4:name5:value"), ordered by name. A list
  /// contributes the netstrings of its entries, an integer its decimal digits.
  void seal_attributes(const std::string& object);
  /// Throws Error if the attributes do not match their checksum.
  void check_attributes(const std::string& object) const;

  /// Starts SWMR: from now on readers may open the file, and only rows can be added.
  void start_swmr();
  /// Allocates `bytes` of disk space behind the end of the file until the next flush(). When the
  /// disk is full, HDF5 does not undo a partial flush; and during a flush the end of file in its
  /// header may lie beyond the real one. Allocating space beforehand prevents both. Throws
  /// RuntimeFailure, with the file untouched, if there is not enough space.
  void reserve(std::size_t bytes);
  /// Passes everything written so far to the operating system, so that a kill of
  /// the process cannot lose it.
  void flush();
  /// Closes the file and reports errors that the destructor would have to ignore.
  void close();
  const std::string& name() const { return status_.file(); }

 private:
  Hdf5File(Hdf5Handle handle, Hdf5Status status);
  /// The POSIX descriptor of the file, and the end of the file in HDF5's layout.
  int descriptor() const;
  off_t end() const;
  void check_link(const std::string& path) const;
  void check_storage(const Hdf5Handle& dataset, const std::string& path) const;
  void read_rows(const std::string& path) const;
  void read_everything(const std::string& group, int depth) const;
  Hdf5Dataset create_dataset(const DatasetSpec& spec, std::int64_t rows, bool extendable);
  void write_attribute(const std::string& object, const std::string& name, hid_t type,
                       const Hdf5Handle& space, const void* value);
  void read_scalar(const std::string& object, const std::string& name, hid_t type,
                   H5T_class_t expected, void* value) const;
  std::vector<std::string> read_texts(const std::string& object, const std::string& name,
                                      bool scalar) const;
  std::vector<std::string> read_variable(const Hdf5Handle& attribute, std::size_t count,
                                         const std::string& where) const;
  std::string attribute_text(const std::string& object, const std::string& name) const;
  std::string attributes_checksum(const std::string& object) const;
  Hdf5Handle handle_;
  Hdf5Status status_;
};

}  // namespace fp8lab
