// Exponential function and logarithm, compared with those of the library in long double.
#include "../exponential.hpp"

#include <cmath>

#include "checks.hpp"

namespace {

/// Whether a value is within 1.1 units in the last place of the exact one (of 2^-1022, for smaller numbers).
bool is_close(double value, long double exact) {
    const long double unit = std::max(std::ldexp(1.0L, std::ilogb(exact) - 52), std::ldexp(1.0L, -1074));
    return std::abs(value - exact) <= 1.1L * unit;
}

}  // namespace

bool check_exponential(std::mt19937_64& random) {
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    for (int k = 0; k < 10'000; ++k) {
        const double t = -700.0 + 1409.0 * uniform(random), small = std::ldexp(2.0 * uniform(random) - 1.0, -int(random() % 60));
        const double any = std::bit_cast<double>(random() % 0x7ff0000000000000 + 1), near_one = 1.0 + 0.5 * small;
        const double subnormal = std::bit_cast<double>(random() % (std::uint64_t(1) << (1 + random() % 52)) + 1);
        for (const double x : {t, small})
            if (!is_close(engine::exp_of(x), std::exp((long double)x))) return false;
        for (const double x : {any, near_one, subnormal})
            if (x < engine::INF && x != 1.0 && !is_close(engine::log_of(x), std::log((long double)x))) return false;
    }
    const bool ends = engine::log_of(1.0) == 0.0 && engine::log_of(0.0) == -engine::INF && engine::exp_of(0.0) == 1.0;
    return ends && engine::exp_or_zero(-700.5, -700.0) == 0.0;
}
