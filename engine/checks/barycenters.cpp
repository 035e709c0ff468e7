// Barycenters with two columns, compared with the best of all kinks of their cost.
#include "../barycenters.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "checks.hpp"

namespace {

using engine::Index;

struct Problem {
    std::vector<Index> first{0}, states;
    std::vector<double> probabilities, costs;
};

/// Rows of n states with random successors and masses over many orders of magnitude.
Problem random_problem(Index n, std::mt19937_64& random) {
    std::uniform_real_distribution<double> uniform;
    Problem made;
    for (Index x = 0; x < n; ++x) {
        double total = 0.0;
        const Index begin = Index(made.states.size());
        for (Index t = 0; t < n; ++t)
            if (t == x || random() % 3 == 0) {
                made.states.push_back(t), made.probabilities.push_back(std::pow(uniform(random), 1 + 8 * (random() % 2)) + 1e-6);
                total += made.probabilities.back();
            }
        made.first.push_back(Index(made.states.size()));
        for (Index e = begin; e < made.first.back(); ++e) made.probabilities[e] /= total;
        made.costs.push_back(uniform(random)), made.costs.push_back(uniform(random));
    }
    return made;
}

/// The successors of a state, those that prefer the first column first, with their costs.
std::vector<std::array<double, 3>> in_order(const Problem& p, Index x) {
    std::vector<std::array<double, 3>> edges;
    for (Index e = p.first[x]; e < p.first[x + 1]; ++e)
        edges.push_back({p.probabilities[e], p.costs[2 * p.states[e]], p.costs[2 * p.states[e] + 1]});
    std::sort(edges.begin(), edges.end(), [](const auto& a, const auto& b) { return a[1] - a[2] < b[1] - b[2]; });
    return edges;
}

/// Σ_x w_x OT(P_x, (t, 1 - t))
double cost_at(const Problem& p, const std::vector<double>& w, double t) {
    double cost = 0.0;
    for (Index x = 0; x < Index(w.size()); ++x) {
        double left = t;
        for (const auto& [mass, one, two] : in_order(p, x)) {
            const double moved = std::min(mass, left);
            left -= moved;
            cost += w[x] * (moved * one + (mass - moved) * two);
        }
    }
    return cost;
}

}  // namespace

bool check_barycenters(std::mt19937_64& random) {
    const Index n = 1 + Index(random() % 12);
    const Problem p = random_problem(n, random);
    std::uniform_real_distribution<double> uniform;
    std::vector<Index> states(n);
    std::vector<double> w(n);
    double total = 0.0;
    for (Index x = 0; x < n; ++x) states[x] = x, w[x] = std::pow(uniform(random), 4) + 1e-6, total += w[x];
    for (double& weight : w) weight /= total;
    const std::vector<Index> first{0, n};
    const std::vector<double> start{0.5, 0.5};
    engine::Team team;
    const auto found = engine::barycenters({{p.first, p.states, p.probabilities}, p.costs, first, states, w, start, 2}, 1e-9, team);
    double best = std::min(cost_at(p, w, 0.0), cost_at(p, w, 1.0));
    for (Index x = 0; x < n; ++x) {
        double t = 0.0;
        for (const auto& edge : in_order(p, x)) best = std::min(best, cost_at(p, w, std::min(1.0, t += edge[0])));
    }
    const double sum = found.rows[0] + found.rows[1];
    const bool is_row = found.rows[0] >= 0.0 && found.rows[1] >= 0.0 && std::abs(sum - 1) < 1e-12;
    return is_row && found.gaps[0] < 1e-3 && cost_at(p, w, found.rows[0]) < best + std::max(1e-7, found.gaps[0]);
}
