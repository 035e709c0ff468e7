// Evaluations and occupancies of random chains of pairs, compared with elimination; and that threads change no bit.
#include "../evaluation.hpp"

#include <cstring>

#include "../linear.hpp"
#include "checks.hpp"

namespace {

using engine::Index;
using Vector = std::vector<double>;

/// Random plans, some of whose flows are zero; pairs may share rows.
struct RandomPlans {
    std::vector<Index> first{0}, chosen;
    std::vector<std::int32_t> target;
    Vector flow;

    RandomPlans(Index size, bool shared, std::mt19937_64& random) {
        const Index rows = shared ? 1 + Index(random() % std::uint64_t(size)) : size;
        for (Index k = 0; k < rows; ++k) {
            const Index entries = 1 + Index(random() % 5);
            double total = 0.0;
            for (Index e = 0; e < entries; ++e) {
                target.push_back(std::int32_t(random() % std::uint64_t(size)));
                flow.push_back(e > 0 && random() % 5 == 0 ? 0.0 : 0.1 + double(random() % 1000) / 1000);
                total += flow.back();
            }
            for (Index e = 0; e < entries; ++e) flow[flow.size() - 1 - std::size_t(e)] /= total;
            first.push_back(Index(target.size()));
        }
        for (Index z = 0; shared && z < size; ++z) chosen.push_back(Index(random() % std::uint64_t(rows)));
    }

    engine::Plans<std::int32_t, double> view() const { return {first, target, flow, chosen}; }
};

/// The solution of (I - γ Π) u = b, or with the transpose, by elimination.
Vector solution(const RandomPlans& plans, Index size, double discount, bool transposed, const Vector& b) {
    Vector matrix(std::size_t(size * size)), u = b;
    for (Index z = 0; z < size; ++z) {
        matrix[z * size + z] += 1.0;
        const Index k = plans.view().row_of(z);
        for (Index e = plans.first[k]; e < plans.first[k + 1]; ++e)
            matrix[transposed ? plans.target[e] * size + z : z * size + plans.target[e]] -= discount * plans.flow[e];
    }
    engine::Team team;
    engine::solve_dense({matrix, u, size, 1}, team);
    return u;
}

double distance(const Vector& u, const Vector& v) { return engine::largest_difference(u.data(), v.data(), Index(u.size())); }

bool are_same(const Vector& u, const Vector& v) { return std::memcmp(u.data(), v.data(), u.size() * sizeof(double)) == 0; }

/// A correction in single precision, of the same plans.
bool corrects(const RandomPlans& plans, double discount, const Vector& b, const Vector& wanted) {
    const std::vector<float> flow(plans.flow.begin(), plans.flow.end()), r(b.begin(), b.end());
    std::vector<float> spare[2] = {r, r};
    engine::Team team(2, {}, 1e9);
    const auto found = engine::correct(team, {plans.first, plans.target, flow}, discount, r, spare[0], spare[1], 1e-4);
    if (!found.solved) return true;  // BiCGStab may stagnate
    Vector u(spare[found.in_second].begin(), spare[found.in_second].end());
    for (double& value : u) value += found.constant;
    return distance(u, wanted) <= 1e-3 / (1 - discount);
}

}  // namespace

bool check_evaluation(std::mt19937_64& random) {
    const Index size = 1 + Index(random() % 60);
    const bool shared = random() % 3 == 0;
    const double discount = random() % 2 ? 0.9 : 0.5;
    const RandomPlans plans(size, shared, random);
    Vector b(size), start(size);
    for (double& value : b) value = double(random() % 1000) / 1000;
    for (int k = 0; k < 3; ++k) start[random() % std::uint64_t(size)] += 1.0 / 3;
    Vector source = start;
    for (double& value : source) value *= 1 - discount;
    const Vector values = solution(plans, size, discount, false, b), masses = solution(plans, size, discount, true, source);

    std::vector<Vector> found;
    for (int threads = 1; threads <= 2; ++threads) {
        engine::Team team(threads, {}, random() % 8 == 0 ? 1.0 : 1e9);  // starting threads takes most of the time
        engine::Watch watch(team);
        const engine::PairChain chain(plans.view(), size);
        Vector u(size), v(size), spare(size), m = start;
        if (!shared && chain.relax(team, discount, b, u, spare, 1e-9) && distance(u, values) > 1e-8 / (1 - discount)) return false;
        if (chain.solve(team, {discount}, b, u, 1e-12, 60) <= 1e-10 && distance(u, values) > 1e-8) return false;
        if (chain.solve(team, {discount, true}, source, v, 1e-13, 60) <= 1e-10 && distance(v, masses) > 1e-8) return false;
        const auto visited = std::make_unique<bool[]>(std::size_t(size));
        chain.mark_visited(source, {visited.get(), std::size_t(size)}, watch);
        const double worst = chain.occupancy(team, discount, source, {visited.get(), std::size_t(size)}, m, 1e-13);
        if (worst <= 1e-10 && distance(m, masses) > 1e-8) return false;
        for (Index z = 0; z < size; ++z)
            if (visited[z] != (masses[z] > 1e-14) && masses[z] > 1e-9) return false;
        for (Index z = 0; z < size; ++z)
            if (!visited[z] && m[z] != 0.0) return false;
        chain.sweep(team, {discount, true}, source, v, 3), chain.sweep(team, {discount}, b, u, 3);
        found.insert(found.end(), {u, v, m});
    }
    for (std::size_t k = 0; k < 3; ++k)
        if (!are_same(found[k], found[k + 3])) return false;
    return shared || corrects(plans, discount, b, values);
}
