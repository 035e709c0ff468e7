// The exponential function, without branches and without the library's, whose last digits differ between systems.
#pragma once

#include <bit>

#include "base.hpp"

namespace engine {

/// e^t for -700 < t ≤ 709, within two units in the last place.
///
/// t = k ln 2 + r, with a polynomial in r, and k written into the exponent. Loops over it vectorize.
ALWAYS_INLINE double exp_of(double t) {
    constexpr double LOG2E = 1.4426950408889634, ROUNDS = 6755399441055744.0;  // adding 1.5 · 2^52 rounds to an integer
    constexpr double LN2_HIGH = 6.93147180369123816490e-01, LN2_LOW = 1.90821492927058770002e-10;
    const double s = t * LOG2E + ROUNDS, k = s - ROUNDS;
    const double r = (t - k * LN2_HIGH) - k * LN2_LOW;
    double e = 1.0 / 479001600 * r + 1.0 / 39916800;
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

}  // namespace engine
