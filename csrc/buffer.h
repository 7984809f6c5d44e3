// Memory aligned to cache lines (and to huge pages where that helps), zeroed, freed with its owner.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace evenflow {

// Anonymous pages: zero at first touch, so an untouched part costs nothing. Asks for huge pages,
// which spare a product that runs through megabytes of weights most of its TLB misses.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    // a huge page's worth is rounded up to whole ones: a part of one would be small pages
    const bool huge = bytes >= kHugePage / 2;
    const size_t page = huge ? kHugePage : kPage, whole = (bytes + page - 1) / page * page;
    mapped_ = whole + (huge ? kHugePage : 0);
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      throw std::bad_alloc();
    }
    auto at = reinterpret_cast<uintptr_t>(base_);
    if (huge) {
      at = (at + kHugePage - 1) / kHugePage * kHugePage;
      madvise(reinterpret_cast<void*>(at), whole, MADV_HUGEPAGE);
    }
    start_ = reinterpret_cast<uint8_t*>(at);
  }
  ~Buffer() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  uint8_t* bytes() { return start_; }
  const uint8_t* bytes() const { return start_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(start_);
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(start_);
  }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20, kPage = 4096;

  void swap(Buffer& other) {
    std::swap(base_, other.base_);
    std::swap(start_, other.start_);
    std::swap(mapped_, other.mapped_);
    std::swap(size_, other.size_);
  }

  void* base_ = nullptr;
  uint8_t* start_ = nullptr;
  size_t mapped_ = 0, size_ = 0;
};

}  // namespace evenflow
