// Loops over vectors that give the same bits with every instruction set.
//
// Vectors are as long as the processor's registers (compilers take longer ones apart, element by element). Minima,
// comparisons and logical operations are exact in any order, so their result does not depend on that length. Sums are
// taken in eight fixed partial sums. Products and sums are never contracted (-ffp-contract=off).
#pragma once

#include <bit>
#include <cmath>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "base.hpp"

namespace engine {

#ifdef __AVX2__
constexpr Index REGISTER = 32;  // bytes
#else
constexpr Index REGISTER = 16;
#endif

// Unaligned vectors of one register each.
typedef double Doubles __attribute__((vector_size(REGISTER), aligned(8), may_alias));
typedef std::int64_t Longs __attribute__((vector_size(REGISTER), aligned(8), may_alias));
typedef float Floats __attribute__((vector_size(REGISTER), aligned(4), may_alias));
typedef std::int32_t Ints __attribute__((vector_size(REGISTER), aligned(4), may_alias));
typedef std::int16_t Shorts __attribute__((vector_size(REGISTER), aligned(2), may_alias));
typedef float HalfFloats __attribute__((vector_size(REGISTER / 2), aligned(4), may_alias));
typedef std::int16_t HalfShorts __attribute__((vector_size(REGISTER / 2), aligned(2), may_alias));

constexpr Index N_DOUBLES = REGISTER / 8, N_FLOATS = REGISTER / 4, N_SHORTS = REGISTER / 2;

ALWAYS_INLINE Doubles doubles_at(const double* p) { return *reinterpret_cast<const Doubles*>(p); }

/// v or -v, without a branch that could not be predicted.
ALWAYS_INLINE double negate_if(bool yes, double v) {
    return std::bit_cast<double>(std::bit_cast<std::uint64_t>(v) ^ (std::uint64_t(yes) << 63));
}

/// Whether any entry of a comparison holds.
ALWAYS_INLINE bool any_of(Longs found) {
#ifdef __AVX2__
    return _mm256_movemask_pd(std::bit_cast<__m256d>(found)) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_pd(std::bit_cast<__m128d>(found)) != 0;
#else
    std::int64_t any = 0;
    for (Index k = 0; k < N_DOUBLES; ++k) any |= found[k];
    return any != 0;
#endif
}

/// Whether line[j] - pot[j] < threshold for some j < n.
ALWAYS_INLINE bool any_below(const double* line, const double* pot, Index n, double threshold) {
    const Doubles level = Doubles{} + threshold;
    Longs one = {}, two = {};
    Index j = 0;
    for (; j + 2 * N_DOUBLES <= n; j += 2 * N_DOUBLES) {
        one |= (doubles_at(line + j) - doubles_at(pot + j) < level);
        two |= (doubles_at(line + j + N_DOUBLES) - doubles_at(pot + j + N_DOUBLES) < level);
    }
    if (j + N_DOUBLES <= n) {
        one |= (doubles_at(line + j) - doubles_at(pot + j) < level);
        j += N_DOUBLES;
    }
    bool found = false;
    for (; j < n; ++j) found |= line[j] - pot[j] < threshold;
    return found | any_of(one | two);
}

/// min_j line[j] - pot[j]; NaN is ignored.
ALWAYS_INLINE double least_of(const double* line, const double* pot, Index n) {
    double least = INF;
    Index j = 0;
    if (n >= 2 * N_DOUBLES) {
        Doubles one = Doubles{} + INF, two = one;
        for (; j + 2 * N_DOUBLES <= n; j += 2 * N_DOUBLES) {
            const Doubles v = doubles_at(line + j) - doubles_at(pot + j);
            const Doubles w = doubles_at(line + j + N_DOUBLES) - doubles_at(pot + j + N_DOUBLES);
            one = v < one ? v : one;
            two = w < two ? w : two;
        }
        one = two < one ? two : one;
        for (Index k = 0; k < N_DOUBLES; ++k) least = one[k] < least ? one[k] : least;
    }
    for (; j < n; ++j) {
        const double v = line[j] - pot[j];
        least = v < least ? v : least;
    }
    return least;
}

/// The first j with line[j] - pot[j] <= value; -1 if there is none (NaN).
ALWAYS_INLINE Index first_at_most(const double* line, const double* pot, Index n, double value) {
    for (Index j = 0; j < n; ++j)
        if (line[j] - pot[j] <= value) return j;
    return -1;
}

/// How a loop reads and writes entries: one by one, or by registers.
struct Single {
    using Type = double;
    static ALWAYS_INLINE double load(const double* p) { return *p; }
    static ALWAYS_INLINE void store(double* p, double v) { *p = v; }
};
struct Register {
    using Type = Doubles;
    static ALWAYS_INLINE Doubles load(const double* p) { return doubles_at(p); }
    static ALWAYS_INLINE void store(double* p, Doubles v) { *reinterpret_cast<Doubles*>(p) = v; }
};

/// Call body(j, Register) for as many entries of 0 … n - 1 as fill registers, and body(j, Single) for each of the others.
template <class Body> ALWAYS_INLINE void each_lane(Index n, Body&& body) {
    Index j = 0;
    for (; j + N_DOUBLES <= n; j += N_DOUBLES) body(j, Register{});
    for (; j < n; ++j) body(j, Single{});
}

/// Eight partial sums of term(0) … term(n - 1), added in a fixed order.
template <class Term> ALWAYS_INLINE double sum_of(Index n, Term&& term) {
    double s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    Index k = 0;
    for (; k + 8 <= n; k += 8)
        for (int lane = 0; lane < 8; ++lane) s[lane] += term(k + lane);
    double rest = 0.0;
    for (; k < n; ++k) rest += term(k);
    return (((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]))) + rest;
}

/// The same sums of terms body(j, Register) and body(j, Single), as in each_lane.
template <class Body> ALWAYS_INLINE double sum_of_lanes(Index n, Body&& body) {
    constexpr Index PARTS = 8 / N_DOUBLES;
    Doubles parts[PARTS] = {};
    Index j = 0;
    for (; j + 8 <= n; j += 8)
        for (Index k = 0; k < PARTS; ++k) parts[k] += body(j + k * N_DOUBLES, Register{});
    double s[8], rest = 0.0;
    for (int lane = 0; lane < 8; ++lane) s[lane] = parts[lane / N_DOUBLES][lane % N_DOUBLES];
    for (; j < n; ++j) rest += body(j, Single{});
    return (((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]))) + rest;
}

/// The smallest and the largest of v[0] … v[n - 1]; NaN is ignored.
ALWAYS_INLINE std::pair<double, double> range_of(const double* v, Index n) {
    Doubles least = Doubles{} + INF, most = -least;
    std::pair<double, double> found{INF, -INF};
    Index j = 0;
    for (; j + N_DOUBLES <= n; j += N_DOUBLES) {
        const Doubles now = doubles_at(v + j);
        least = now < least ? now : least;
        most = now > most ? now : most;
    }
    for (Index k = 0; k < N_DOUBLES; ++k) found = {std::min(found.first, least[k]), std::max(found.second, most[k])};
    for (; j < n; ++j) found = {v[j] < found.first ? v[j] : found.first, v[j] > found.second ? v[j] : found.second};
    return found;
}

/// The largest |u[j] - v[j]|; NaN is ignored.
ALWAYS_INLINE double largest_difference(const double* u, const double* v, Index n) {
    Doubles most = {};
    double largest = 0.0;
    Index j = 0;
    for (; j + N_DOUBLES <= n; j += N_DOUBLES) {
        const Doubles change = doubles_at(u + j) - doubles_at(v + j), size = change < 0.0 ? -change : change;
        most = size > most ? size : most;
    }
    for (Index k = 0; k < N_DOUBLES; ++k) largest = std::max(largest, most[k]);
    for (; j < n; ++j) {
        const double size = std::abs(u[j] - v[j]);
        largest = size > largest ? size : largest;
    }
    return largest;
}

/// Whether -limit <= v[j] <= limit for all j < n; false if one of them is NaN.
ALWAYS_INLINE bool all_within(const double* v, Index n, double limit) {
    const Doubles high = Doubles{} + limit, low = -high;
    Longs inside = Longs{} - 1;
    Index j = 0;
    for (; j + N_DOUBLES <= n; j += N_DOUBLES) inside &= (doubles_at(v + j) <= high) & (doubles_at(v + j) >= low);
    bool all = true;
    for (Index k = 0; k < N_DOUBLES; ++k) all = all && inside[k] != 0;
    for (; j < n; ++j) all = all && v[j] <= limit && v[j] >= -limit;
    return all;
}

/// <u, v>
template <class T> ALWAYS_INLINE double dot(const T* u, const T* v, Index n) {
    return sum_of(n, [=](Index k) { return double(u[k]) * double(v[k]); });
}

}  // namespace engine
