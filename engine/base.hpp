// Types that every topic uses, and how a computation is stopped.
//
// The engine knows nothing of Python. It throws two kinds of exceptions, Stopped and std::bad_alloc; bindings.cpp
// translates them. Arrays are checked there, once; inside the engine indices are in range.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace engine {

using Index = std::int64_t;
template <class T> using View = std::span<const T>;

/// Thrown where a computation was asked to stop.
struct Stopped : std::exception {
    const char* what() const noexcept override { return "stopped"; }
};

/// Asks the caller now and then whether to go on. Work is counted in visits of a number in memory (about 1 ns each).
class Watch {
  public:
    /// `is_stopped` is called on the thread that computes; an empty function never stops.
    explicit Watch(std::function<bool()> is_stopped = {}) : is_stopped_(std::move(is_stopped)) {}

    /// Count work done; throws Stopped if the caller wants to stop.
    void spend(Index work) {
        since_ += work;
        if (since_ < WORK_BETWEEN_CHECKS) return;
        since_ = 0;
        if (is_stopped_ && is_stopped_()) throw Stopped();
    }

  private:
    static constexpr Index WORK_BETWEEN_CHECKS = 5'000'000;

    std::function<bool()> is_stopped_;
    Index since_ = 0;
};

}  // namespace engine
