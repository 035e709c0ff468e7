// Types that every topic uses.
//
// The engine knows nothing of Python. It throws two kinds of exceptions, Stopped (parallel.hpp) and std::bad_alloc;
// bindings.cpp translates them. Arrays are checked there, once; inside the engine indices are in range.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace engine {

using Index = std::int64_t;

/// Arrays of the caller: to read, and to write.
template <class T> using View = std::span<const T>;
template <class T> using Out = std::span<T>;

constexpr double INF = std::numeric_limits<double>::infinity();
constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();
constexpr double EPS = std::numeric_limits<double>::epsilon();

/// The positive entries of a stochastic matrix by row: row i has the entries first[i] … first[i + 1] - 1.
struct Rows {
    View<Index> first;
    View<Index> states;  // ascending within a row
    View<double> probabilities;

    Index size() const { return Index(first.size()) - 1; }
    Index length(Index i) const { return first[i + 1] - first[i]; }
    View<Index> states_of(Index i) const { return states.subspan(first[i], length(i)); }
    View<double> probabilities_of(Index i) const { return probabilities.subspan(first[i], length(i)); }

    Index longest() const {
        Index most = 0;
        for (Index i = 0; i < size(); ++i) most = std::max(most, length(i));
        return most;
    }
};

}  // namespace engine
