// Large arrays that are written before they are read.
//
// They are not set to zero, and Linux is asked for large pages: an array of millions of entries takes a third less time to
// fill for the first time, and scattered accesses need fewer translations of addresses.
#pragma once

#include <cstddef>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "base.hpp"

namespace engine {

/// An array of `size` numbers, whose values are not set.
template <class T> class LargeArray {
  public:
    LargeArray() = default;
    explicit LargeArray(Index size) : size_(size), entries_(size > 0 ? new_entries(std::size_t(size) * sizeof(T)) : nullptr) {}
    LargeArray(LargeArray&& other) noexcept : size_(std::exchange(other.size_, 0)), entries_(std::exchange(other.entries_, nullptr)) {}
    LargeArray& operator=(LargeArray&& other) noexcept {
        std::swap(size_, other.size_), std::swap(entries_, other.entries_);
        return *this;
    }
    ~LargeArray() {
        if (entries_) ::operator delete(entries_, std::align_val_t(alignment(std::size_t(size_) * sizeof(T))));
    }

    Index size() const { return size_; }
    T* data() { return entries_; }
    const T* data() const { return entries_; }
    T& operator[](Index k) { return entries_[k]; }
    const T& operator[](Index k) const { return entries_[k]; }
    operator Out<T>() { return {entries_, std::size_t(size_)}; }
    operator View<T>() const { return {entries_, std::size_t(size_)}; }

  private:
    static constexpr std::size_t PAGE = std::size_t(1) << 21, LINE = 64;

    Index size_ = 0;
    T* entries_ = nullptr;

    static std::size_t alignment(std::size_t bytes) { return bytes >= PAGE ? PAGE : LINE; }

    static T* new_entries(std::size_t bytes) {
        void* memory = ::operator new(bytes, std::align_val_t(alignment(bytes)));
#if defined(__linux__)
        if (bytes >= PAGE) madvise(memory, bytes, MADV_HUGEPAGE);  // where that is not possible, nothing happens
#endif
        return static_cast<T*>(memory);
    }
};

}  // namespace engine
