// Tensors straight from a file: pread into the array's own buffer, no copy through JavaScript and no lazy read that could fail later.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "device_copy.h"
#include "groups.h"

namespace tidemark {
namespace {

class File {
 public:
  explicit File(const std::string& path) : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw Fail{errno == ENOENT ? "MODEL_NOT_FOUND" : "MODEL_FILE_UNREADABLE", path_ + ": " + std::strerror(errno)};
  }
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void read(uint8_t* target, size_t size, off_t at) const {
    while (size > 0) {
      // A single pread moves less than 2 GiB, and any of them may come short.
      ssize_t n = pread(fd_, target, std::min<size_t>(size, 1u << 30), at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw Fail{"MODEL_FILE_UNREADABLE", path_ + ": " + std::strerror(errno)};
      if (n == 0) throw Fail{"MODEL_FILE_TRUNCATED", path_ + " ends at byte " + std::to_string(at) + ", " + std::to_string(size) + " bytes early. Is the download complete?"};
      target += n;
      size -= static_cast<size_t>(n);
      at += n;
    }
  }

 private:
  std::string path_;
  int fd_;
};

mx::array loadTensor(Call& c, std::string path, double offset, double length, mx::Shape shape, mx::Dtype dtype) {
  size_t expected = detail::byteSize(shape, dtype);
  if (static_cast<double>(expected) != length || !(offset >= 0 && offset <= 9007199254740991.0)) {
    throw Fail{"MODEL_TENSOR_SHAPE", path + ": the shape needs " + std::to_string(expected) + " bytes, the file's entry has " + std::to_string(static_cast<int64_t>(length))};
  }
  File file(path);
  return fillIn(std::move(shape), dtype, c.env.engineStream ? &*c.env.engineStream : nullptr,
                [&](uint8_t* target, size_t at, size_t size) { file.read(target, size, static_cast<off_t>(offset) + static_cast<off_t>(at)); });
}

}  // namespace

void bindFiles(Binder& b) {
  b.def("loadTensor", [](Call& c, std::string path, double offset, double length, mx::Shape shape, mx::Dtype dtype) {
    return loadTensor(c, std::move(path), offset, length, std::move(shape), dtype);
  });
}

}  // namespace tidemark
