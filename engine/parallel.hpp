// Work on several threads, and how it is stopped.
//
// Threads live for one sweep: nothing to fork, nothing left behind. Every piece of a sweep writes only what is its own,
// so results do not depend on the number of threads. Sums over pieces must not depend on it either: whoever adds up
// cuts the work by its size alone (`even_pieces`).
//
// Only the calling thread asks whether to stop (a signal may have arrived); the others see the answer.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include "base.hpp"

namespace engine {

/// Thrown where a computation was asked to stop.
struct Stopped : std::exception {
    const char* what() const noexcept override { return "stopped"; }
};

/// Work below which another thread costs more than it saves.
constexpr double WORK_FOR_A_THREAD = 200'000;

/// The threads of a computation, and whether it goes on.
class Team {
  public:
    /// `is_stopped` is called now and then on the calling thread; an empty function never stops. `share` is the least work
    /// that a thread gets; no result depends on it.
    explicit Team(int threads = 1, std::function<bool()> is_stopped = {}, double share = WORK_FOR_A_THREAD)
        : threads_(threads), is_stopped_(std::move(is_stopped)), share_(share) {}

    int threads() const { return threads_; }
    double share() const { return share_; }
    void stop() { stopped_.store(true, std::memory_order_relaxed); }
    bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

    /// Throw Stopped if the computation has to end.
    void check(bool is_caller) {
        if (is_caller && is_stopped_ && is_stopped_()) stop();
        if (stopped()) throw Stopped();
    }

  private:
    friend class Watch;

    Index since_ = 0;  // work of the calling thread since its last check
    int threads_;
    std::function<bool()> is_stopped_;
    double share_;
    std::atomic<bool> stopped_{false};
};

/// One thread of a team. It counts its work in visits of a number in memory (about 1 ns each).
///
/// The calling thread goes on counting where its last watch ended, so that many short loops are checked like a long one.
class Watch {
  public:
    explicit Watch(Team& team, bool is_caller = true) : team_(team), is_caller_(is_caller), since_(is_caller ? team.since_ : 0) {}
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    ~Watch() {
        if (is_caller_) team_.since_ = since_;
    }

    /// Count work done; throws Stopped if the computation has to end.
    void spend(Index work) {
        since_ += work;
        if (since_ < WORK_BETWEEN_CHECKS) return;
        since_ = 0;
        team_.check(is_caller_);
    }

  private:
    static constexpr Index WORK_BETWEEN_CHECKS = 5'000'000;

    Team& team_;
    bool is_caller_;
    Index since_;
};

/// Call run(lo, hi, watch) on consecutive pieces of 0 … size - 1, which together take this much work.
template <class Run> void split(Team& team, Index size, double work, Run&& run) {
    const double worth = team.threads() == 1 ? 1.0 : std::min(8.0 * team.threads(), std::floor(work / team.share()));
    const Index pieces = Index(std::min(std::max(worth, 1.0), double(size)));
    if (pieces <= 1) {
        Watch watch(team);
        if (size > 0) run(Index(0), size, watch);
        return;
    }
    std::atomic<Index> next{0};
    std::exception_ptr error;
    std::mutex guard;
    std::condition_variable ended;
    Index running = 0;  // guarded
    const auto take = [&](bool is_caller) {
        try {
            Watch watch(team, is_caller);
            for (Index k; !team.stopped() && (k = next++) < pieces;) {
                run(size * k / pieces, size * (k + 1) / pieces, watch);
                if (is_caller) team.check(true);
            }
        } catch (...) {
            const std::lock_guard lock(guard);
            if (!error) error = std::current_exception();
            team.stop();
        }
    };
    const auto take_in_thread = [&] {
        take(false);
        const std::lock_guard lock(guard);
        --running;
        ended.notify_one();
    };
    {
        std::vector<std::jthread> others;
        try {
            for (Index k = 1; k < std::min<Index>(team.threads(), pieces); ++k) {
                const std::lock_guard lock(guard);
                others.emplace_back(take_in_thread);
                ++running;
            }
        } catch (const std::system_error&) {  // the system has no more threads: those that started do the work
        }
        take(true);
        std::unique_lock lock(guard);
        while (running > 0) {
            ended.wait_for(lock, std::chrono::milliseconds(20));
            if (running > 0 && !team.stopped()) {
                lock.unlock();
                try {
                    team.check(true);
                } catch (const Stopped&) {  // the others see it, too
                }
                lock.lock();
            }
        }
    }
    if (error) std::rethrow_exception(error);
    if (team.stopped()) throw Stopped();
}

/// How many pieces a sum over `size` items of this much work is cut into: at most 16, and independent of the threads.
inline Index even_pieces(Index size, double work) {
    return Index(std::min(std::clamp(std::floor(work / WORK_FOR_A_THREAD), 1.0, 16.0), std::max(double(size), 1.0)));
}

}  // namespace engine
