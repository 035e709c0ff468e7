// The exponential function and the logarithm, without branches and without the library's, whose last digits differ
// between systems. Loops over them vectorize.
#pragma once

#include <bit>

#include "base.hpp"

namespace engine {

constexpr double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;  // ln 2 is their sum

/// e^t for -700 < t ≤ 709, within two units in the last place.
///
/// t = k ln 2 + r, with a polynomial in r, and k written into the exponent.
ALWAYS_INLINE double exp_of(double t) {
    constexpr double LOG2E = 1.4426950408889634, ROUNDS = 6755399441055744.0;  // adding 1.5 · 2^52 rounds to an integer
    const double s = t * LOG2E + ROUNDS, k = s - ROUNDS;
    const double r = (t - k * LN2_HIGH) - k * LN2_LOW;
    double e = 1.0 / 6227020800 * r + 1.0 / 479001600;
    e = e * r + 1.0 / 39916800;
    e = e * r + 1.0 / 3628800;
    e = e * r + 1.0 / 362880;
    e = e * r + 1.0 / 40320;
    e = e * r + 1.0 / 5040;
    e = e * r + 1.0 / 720;
    e = e * r + 1.0 / 120;
    e = e * r + 1.0 / 24;
    e = e * r + 1.0 / 6;
    e = e * r + 0.5;
    e = e * r + 1.0;
    e = e * r + 1.0;
    return e * std::bit_cast<double>((std::bit_cast<std::int64_t>(s) + 1023) << 52);
}

/// e^t for t ≤ 709, and 0 for t ≤ `least` (which must be at least -700).
ALWAYS_INLINE double exp_or_zero(double t, double least) {
    const double e = exp_of(t > least ? t : least);
    return t > least ? e : 0.0;
}

/// ln x, within one unit in the last place; -∞ for zero, and not a number for negative numbers.
///
/// x = 2^k m with m between sqrt(1/2) and sqrt(2), and ln m = 2 artanh s with s = (m - 1) / (m + 1), by the polynomial of
/// Sun's library (fdlibm).
ALWAYS_INLINE double log_of(double x) {
    constexpr double LEAST_NORMAL = std::numeric_limits<double>::min(), TWO_TO_54 = 18014398509481984.0;
    constexpr std::uint64_t ROOT = 0x3FE6A09E00000000, ONE = 0x3FF0000000000000, MANTISSA = 0x000FFFFFFFFFFFFF;
    constexpr std::uint64_t TWO_TO_52 = 0x4330000000000000;  // numbers below 2^52, written into its mantissa, are added to it
    const bool tiny = x < LEAST_NORMAL;
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(tiny ? x * TWO_TO_54 : x) + (ONE - ROOT);
    const double k = std::bit_cast<double>((bits >> 52) | TWO_TO_52) - (4503599627370496.0 + 1023.0) - (tiny ? 54.0 : 0.0);
    const double f = std::bit_cast<double>((bits & MANTISSA) + ROOT) - 1.0;
    const double s = f / (2.0 + f), z = s * s, w = z * z, half = 0.5 * f * f;
    const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double odd = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double value = s * (half + (even + odd)) + k * LN2_LOW - half + f + k * LN2_HIGH;
    const double finite = x == 0.0 ? -INF : value;
    return x < INF && x >= 0.0 ? finite : x == INF ? INF : NOT_A_NUMBER;
}

}  // namespace engine
