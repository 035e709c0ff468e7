#include "certificates.hpp"

#include <cmath>

namespace engine {

double transport_rounding(const PlanErrors& errors) {
    const double n = double(errors.nodes);
    const double more = errors.by_potentials ? 0.5 * n * EPS + 2 * errors.clipped : 0.0;
    return (1.5 * n + 2) * EPS + errors.unbalanced + 2 * errors.clipped + more;
}

double unbalanced_mass(View<Index> first, View<double> probabilities) {
    double most = 0.0;
    for (std::size_t i = 0; i + 1 < first.size(); ++i) {
        const double* row = probabilities.data() + first[i];
        most = std::max(most, std::abs(sum_of(first[i + 1] - first[i], [=](Index k) { return row[k]; }) - 1.0));
    }
    return most;
}

Band band_of(const Extremes& change, const PlanErrors& errors, double discount, double price) {
    const double eta = transport_rounding(errors) + 6 * EPS, ahead = discount / (1 - discount);
    return {
        ahead * (change.high + change.low - price) / 2,
        discount * (change.high - change.low + price) / (1 - discount) / 2,
        eta * change.size() / (1 - discount),
    };
}

StartValue solve_start(const Start& start, View<double> U, Index n_y, double price, Watch& watch) {
    const Index a = Index(start.p.size()), b = Index(start.q.size());
    std::vector<double> entries(a * b);
    for (Index s = 0; s < a; ++s)
        for (Index t = 0; t < b; ++t) entries[s * b + t] = U[start.rows[s] * n_y + start.cols[t]];
    const Solution solved = solve_one({entries.data(), b, a, b}, {start.p.data(), start.q.data()}, start.tree, price, start.pot, watch);
    StartValue found{solved.value, solved.solved, solved.price};
    const auto off = [](View<double> law) { return std::abs(sum_of(Index(law.size()), [=](Index k) { return law[k]; }) - 1.0); };
    const auto [least, largest] = std::minmax_element(entries.begin(), entries.end());
    found.slack = transport_rounding({a + b, off(start.p) + off(start.q), solved.clipped});
    found.slack *= std::max(*largest, 0.0) + 2 * std::max(-*least, 0.0);
    return found;
}

Interval start_interval(const StartValue& start) {
    return {start.solved ? start.value - start.price - start.slack : -INF, start.value + start.slack};
}

CostRange CostRange::of(View<double> cost) {
    const auto [least, largest] = std::minmax_element(cost.begin(), cost.end());
    return {*least, *largest};
}

Bounds bounds_of(const StartValue& start, double half_gap, const CostRange& costs) {
    const double scale = costs.largest;
    Bounds found{0.0, costs.least, scale, 0.0};  // the distance is an average of costs
    if (half_gap < INF) {
        found.upper = std::min(std::nextafter(scale * (start.value + half_gap + start.slack), INF), scale);
        if (start.solved)
            found.lower = std::max(std::nextafter(scale * (start.value - start.price - half_gap - start.slack), -INF), costs.least);
    }
    found.value = std::min(std::max(scale * start.value, found.lower), found.upper) + 0.0;
    const double gap = 2 * (half_gap + start.slack) + start.price + 4 * EPS;
    found.gap = std::max(gap, (found.upper - found.lower) / costs.unit());  // subnormal numbers have fewer digits
    return found;
}

namespace {

/// <ρ_X, a> + <ρ_Y, b> for the c-transforms of the averages over the rows of a table that is read by `entry(x, y)`.
template <class Entry> double transformed(Index n_x, Index n_y, View<double> rho_x, View<double> rho_y, double discount, Entry&& entry) {
    std::vector<double> a(n_x, INF), b(n_y, INF);
    for (Index y = 0; y < n_y; ++y) {
        const double mean = sum_of(n_x, [&](Index x) { return rho_x[x] * entry(x, y); });
        for (Index x = 0; x < n_x; ++x) a[x] = std::min(a[x], entry(x, y) - mean);
    }
    for (Index x = 0; x < n_x; ++x)
        for (Index y = 0; y < n_y; ++y) b[y] = std::min(b[y], entry(x, y) - a[x]);
    const auto [a_low, a_high] = std::minmax_element(a.begin(), a.end());
    const auto [b_low, b_high] = std::minmax_element(b.begin(), b.end());
    const double spread = (*a_high - *a_low) + (*b_high - *b_low);
    // Sums of n products in eight parts have at most n/8 + 8 rounding errors of u, the differences in a and b one, and the
    // last two sums another two: in all (n/16 + 5.5) ε.
    const double rounding_a = (double(n_x) / 16 + 6) * EPS * std::max(std::abs(*a_low), std::abs(*a_high));
    const double rounding_b = (double(n_y) / 16 + 6) * EPS * std::max(std::abs(*b_low), std::abs(*b_high));
    const double error = OCCUPANCY_ERROR / (1 - discount) * spread + rounding_a + rounding_b;
    return dot(rho_x.data(), a.data(), n_x) + dot(rho_y.data(), b.data(), n_y) - error;
}

}  // namespace

double separable_minimum(View<double> delta, View<double> rho_x, View<double> rho_y, double discount) {
    const Index n_x = Index(rho_x.size()), n_y = Index(rho_y.size());
    const double least = *std::min_element(delta.begin(), delta.end());
    const double by_x = transformed(n_x, n_y, rho_x, rho_y, discount, [&](Index x, Index y) { return delta[x * n_y + y]; });
    const double by_y = transformed(n_y, n_x, rho_y, rho_x, discount, [&](Index y, Index x) { return delta[x * n_y + y]; });
    return std::max({least, by_x, by_y});
}

Interval separable_bounds(const Tables& tables, Interval start, const Occupancies& rho, double discount, const CostRange& costs) {
    std::vector<double> gain(tables.U.size());
    for (std::size_t z = 0; z < gain.size(); ++z) gain[z] = tables.lower[z] - tables.U[z];
    const double low = separable_minimum(gain, rho.x, rho.y, discount);
    for (std::size_t z = 0; z < gain.size(); ++z) gain[z] = tables.U[z] - tables.upper[z];
    const double high = -separable_minimum(gain, rho.x, rho.y, discount);
    const double lower = start.low + (low - tables.slack) / (1 - discount), upper = start.high + (high + tables.slack) / (1 - discount);
    return {  // where costs are zero, so are the bounds; 0 · ∞ leaves the range of the costs
        std::max(costs.least, std::nextafter(costs.largest * lower, -INF)),
        std::min(costs.largest, std::nextafter(costs.largest * upper, INF)),
    };
}

}  // namespace engine
