// Exponential function and logarithm, without branches and without the library's, whose last digits differ between
// systems. Loops over them vectorize.
#pragma once

#include <bit>
#include <cstdint>

#include "lanes.hpp"

namespace engine {

/// e^t for numbers T, a double or a vector of them, with the integers I of the same size.
///
/// t = k ln 2 + r with |r| ≤ ln 2 / 2, e^r = 1 + r + r² q(r) with a polynomial q (of degree 9, by interpolation at the
/// Chebyshev nodes; its error is below 2e-17), and k written into the exponent. The terms of q are added in pairs, since
/// one after another they would wait for each other.
template <class T, class I> ALWAYS_INLINE T exponential(T t) {
    constexpr double LOG2E = 1.4426950408889634, ROUNDS = 6755399441055744.0;  // adding 1.5 · 2^52 rounds to an integer
    constexpr double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;
    const T s = t * LOG2E + ROUNDS, k = s - ROUNDS;
    const T r = (t - k * LN2_HIGH) - k * LN2_LOW, r2 = r * r, r4 = r2 * r2;
    const T q01 = 5.000000000000001e-01 + 1.6666666666666669e-01 * r;
    const T q23 = 4.166666666662413e-02 + 8.333333333330062e-03 * r;
    const T q45 = 1.3888888917213717e-03 + 1.9841269863053618e-04 * r;
    const T q67 = 2.4801521295954376e-05 + 2.7557268459997064e-06 * r;
    const T q89 = 2.7620088445409746e-07 + 2.510038549551032e-08 * r;
    const T q = (q01 + q23 * r2) + r4 * ((q45 + q67 * r2) + r4 * q89);
    return (1.0 + (r + r2 * q)) * std::bit_cast<T>((std::bit_cast<I>(s) + 1023) << 52);
}

/// e^t for -700 ≤ t ≤ 709, within 1.1 units in the last place.
ALWAYS_INLINE double exp_of(double t) { return exponential<double, std::int64_t>(t); }
ALWAYS_INLINE Doubles exp_of(Doubles t) { return exponential<Doubles, Longs>(t); }

/// e^t for t ≤ 709, and 0 for t ≤ `least` (which must be at least -700).
ALWAYS_INLINE double exp_or_zero(double t, double least) { return t > least ? exp_of(t) : 0.0; }
ALWAYS_INLINE Doubles exp_or_zero(Doubles t, double least) { return t > Doubles{} + least ? exp_of(t) : Doubles{}; }

/// log x for 0 ≤ x < ∞, within one unit in the last place; log 0 = -∞. What is not a number stays so.
///
/// x = 2^k (1 + f) with 1 + f in [√½, √2). With s = f/(2 + f), log(1 + f) = f - f²/2 + s (f²/2 + R(s²)), where R is the
/// polynomial of fdlibm for log(1 + f) - 2s, divided by s.
ALWAYS_INLINE double log_of(double x) {
    constexpr double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;
    constexpr double SMALLEST_NORMAL = 0x1p-1022, ROUNDS = 6755399441055744.0;  // 1.5 · 2^52
    constexpr std::uint64_t ROOT_HALF = 0x3fe6a09e667f3bcd, ONE = 0x3ff0000000000000, FRACTION = 0x000fffffffffffff;
    const bool subnormal = x < SMALLEST_NORMAL;
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(subnormal ? x * 0x1p54 : x) + (ONE - ROOT_HALF);
    const double exponent = std::bit_cast<double>((bits >> 52) + std::bit_cast<std::uint64_t>(ROUNDS)) - ROUNDS;
    const double k = exponent - (subnormal ? 1077.0 : 1023.0);
    const double f = std::bit_cast<double>((bits & FRACTION) + ROOT_HALF) - 1.0, half = 0.5 * f * f;
    const double s = f / (2.0 + f), z = s * s, w = z * z;
    const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double value = s * (half + (even + odd)) + k * LN2_LOW - half + f + k * LN2_HIGH;
    return x > 0.0 ? value : x - INF;
}

}  // namespace engine
