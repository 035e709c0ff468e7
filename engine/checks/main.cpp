// Runs the checks of all topics; `make test-sanitizers` builds it under the compiler's sanitizers.
#include <cstdio>

#include "checks.hpp"

namespace {

struct Check {
    const char* name;
    bool (*agrees)(std::mt19937_64&);
    int times;
};

constexpr Check CHECKS[] = {
    {"barycenters", check_barycenters, 500},
    {"evaluation", check_evaluation, 1000},
    {"dense", check_dense, 400},
    {"exponential", check_exponential, 100},
    {"games", check_games, 600},
    {"linear", check_linear, 300},
    {"refine", check_refine, 500},
};

}  // namespace

int main() {
    for (const Check& check : CHECKS) {
        std::mt19937_64 random(20261118);
        for (int k = 0; k < check.times; ++k)
            if (!check.agrees(random)) return std::printf("%s differs in problem %d\n", check.name, k), 1;
        std::printf("%s: %d problems\n", check.name, check.times);
    }
}
