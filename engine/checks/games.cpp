// Games, compared with plain solves of every transport; and mass in place, compared with what a basis must be.
#include "../games.hpp"

#include <cmath>
#include <numeric>

#include "../staying.hpp"
#include "checks.hpp"

namespace {

using engine::Index;
using Random = std::mt19937_64;

double uniform(Random& random) { return double(random() >> 11) * 0x1p-53; }
Index below(Index n, Random& random) { return Index(random() % std::uint64_t(n)); }

/// Masses that sum to one; whole multiples of a unit (with many ties) or any numbers.
std::vector<double> random_masses(Index n, bool whole, Random& random) {
    std::vector<double> masses(n);
    double total = 0.0;
    for (double& mass : masses) total += mass = whole ? double(1 + below(3, random)) : 0.01 + uniform(random);
    for (double& mass : masses) mass /= total;
    return masses;
}

/// Rows over n states.
struct Kernel {
    std::vector<Index> first{0}, states;
    std::vector<double> probabilities;
    std::vector<Index> order;

    engine::Rows rows() const { return {first, states, probabilities}; }
};

void add_row(Kernel& kernel, Index n, Index length, bool whole, Random& random) {
    std::vector<Index> states(n);
    std::iota(states.begin(), states.end(), Index(0));
    std::shuffle(states.begin(), states.end(), random);
    std::sort(states.begin(), states.begin() + length);
    for (const double mass : random_masses(length, whole, random)) kernel.probabilities.push_back(mass);
    for (Index k = 0; k < length; ++k) kernel.states.push_back(states[k]), kernel.order.push_back(k);
    kernel.first.push_back(Index(kernel.states.size()));
}

Kernel random_kernel(Index rows, Index n, bool full, Random& random) {
    Kernel kernel;
    const bool whole = random() % 2;
    for (Index i = 0; i < rows; ++i) add_row(kernel, n, full ? n : 1 + below(n, random), whole, random);
    return kernel;
}

/// Distances of random points, or any numbers.
std::vector<double> random_table(Index n_x, Index n_y, bool metric, Random& random) {
    std::vector<double> points(n_x + n_y), W;
    for (double& point : points) point = uniform(random);
    for (Index s = 0; s < n_x; ++s)
        for (Index t = 0; t < n_y; ++t) W.push_back(metric ? std::abs(points[s] - points[t]) : uniform(random));
    return W;
}

/// Whether edges are a spanning tree, parents first, with the right marginals; and, if it is `fresh`, empty edges point to the
/// root (rounding can make others empty).
template <class Int> bool is_basis(const engine::Item<Int>& item, bool fresh) {
    const Index a = item.a(), b = item.b();
    std::vector<double> left(item.m.p, item.m.p + a);
    left.insert(left.end(), item.m.q, item.m.q + b);
    std::vector<bool> seen(a + b);
    seen[item.tree.parent[0]] = true;
    for (Index k = 0; k < item.tree.edges; ++k) {
        const Index u = item.tree.child[k], v = item.tree.parent[k];
        const double flow = item.tree.flow[k];
        if (!seen[v] || seen[u] || (u < a) == (v < a) || flow < 0.0 || (fresh && flow == 0.0 && u >= a)) return false;
        seen[u] = true, left[u] -= flow, left[v] -= flow;
    }
    return std::all_of(left.begin(), left.end(), [](double rest) { return std::abs(rest) < 1e-13; });
}

/// A game between two MDPs with its arrays.
struct Problem {
    Index n_x, n_y, n_a, n_b;
    Kernel x, y;
    std::vector<Index> listed, at{0}, lines{0}, members, line, chosen, numbers, first{0};
    std::vector<double> base, delta, value, flow;
    std::vector<std::int8_t> child, parent;
    std::vector<std::int32_t> target, selected_target;
    std::vector<float> selected_flow, residual;
    double discount = 0.9;
    bool hollow;

    Problem(Index n, bool full, bool hollow_, Random& random)
        : n_x(n), n_y(hollow_ ? n : 1 + below(n, random)), n_a(1 + below(3, random)), n_b(1 + below(3, random)), hollow(hollow_) {
        x = random_kernel(n_x * n_a, n_x, full, random), y = random_kernel(n_y * n_b, n_y, full, random);
        const Index pairs = n_x * n_y, choices = n_a * n_b;
        for (Index s = 0; s < n_x; ++s)
            for (Index t = 0; t < n_y; ++t) add_pair(s, t, random);
        for (Index a = 0; a < n_a; ++a) add_line([&](Index c) { return c / n_b == a; });
        for (Index b = 0; b < n_b; ++b) add_line([&](Index c) { return c % n_b == b; });
        delta.assign(pairs * choices, engine::INF), value.resize(pairs), line.resize(pairs);
        for (Index p = 0; p <= pairs; ++p) chosen.push_back(p * choices);
        numbers.resize(pairs);
        std::iota(numbers.begin(), numbers.end(), Index(0));
        child.resize(at.back()), parent.resize(at.back()), flow.resize(at.back()), target.resize(at.back());
        selected_target.resize(first.back()), selected_flow.resize(first.back()), residual.resize(pairs);
    }

    void add_pair(Index s, Index t, Random& random) {
        Index longest = 0;
        for (Index a = 0; a < n_a; ++a)
            for (Index b = 0; b < n_b; ++b) {
                const Index i = a * n_x + s, j = b * n_y + t, edges = x.rows().length(i) + y.rows().length(j) - 1;
                listed.push_back(i * n_y * n_b + j), at.push_back(at.back() + edges), base.push_back(0.1 * uniform(random));
                longest = std::max(longest, edges);
            }
        first.push_back(first.back() + longest);
    }

    template <class IsMember> void add_line(IsMember&& is_member) {
        for (Index c = 0; c < n_a * n_b; ++c)
            if (is_member(c)) members.push_back(c);
        lines.push_back(Index(members.size()));
    }

    /// The same with other masses.
    void change_masses(Random& random) {
        for (Kernel* kernel : {&x, &y})
            for (std::size_t i = 0; i + 1 < kernel->first.size(); ++i) {
                const Index from = kernel->first[i], n = kernel->first[i + 1] - from;
                const std::vector<double> masses = random_masses(n, random() % 2, random);
                const double step = random() % 2 ? 1.0 : 0.01;
                for (Index k = 0; k < n; ++k) kernel->probabilities[from + k] += step * (masses[k] - kernel->probabilities[from + k]);
            }
    }

    engine::Items items() const { return {x.rows(), y.rows(), n_y, listed, x.order, y.order}; }
    engine::Trees<std::int8_t> trees() { return {at, child, parent, flow}; }

    engine::Game game() {
        return {
            items(), trees(), {base, lines, members, discount, hollow}, {delta, line, chosen, value}, {numbers, target},
            {first, selected_target, selected_flow, residual},
        };
    }

    bool has_bases(bool fresh) {
        const engine::Items all = items();
        const engine::Trees<std::int8_t> held = trees();
        for (Index k = 0; k < all.size(); ++k)
            if (!is_basis(engine::item_of(k, all, held), fresh)) return false;
        return true;
    }

    double least(Index n, Index p, const std::vector<double>& by_choice) const {
        double found = engine::INF;
        for (Index e = lines[n]; e < lines[n + 1]; ++e) found = std::min(found, by_choice[p * n_a * n_b + members[e]]);
        return found;
    }

    double worst(Index p, const std::vector<double>& by_choice) const {
        double most = -engine::INF;
        for (std::size_t n = 0; n + 1 < lines.size(); ++n) most = std::max(most, least(Index(n), p, by_choice));
        return most;
    }
};

/// δ of all choices by plain solves.
std::vector<double> plain_solves(Problem& problem, const std::vector<double>& W, engine::Watch& watch) {
    const engine::Items items = problem.items();
    std::vector<std::int8_t> child(problem.child.size()), parent(problem.child.size());
    std::vector<double> flow(problem.child.size()), delta(problem.delta.size());
    const engine::Trees<std::int8_t> trees{problem.at, child, parent, flow};
    engine::ItemScratch scratch(items.x.longest(), items.y.longest(), watch);
    engine::solve_items<std::int8_t>(0, items.size(), items, trees, W, {engine::Basis::NONE, 1e-13}, scratch, delta);
    for (std::size_t k = 0; k < delta.size(); ++k) delta[k] = problem.base[k] + problem.discount * delta[k];
    return delta;
}

bool near(double a, double b) { return std::abs(a - b) < 1e-10; }

/// Whether the values are those of the game, up to `excess`, and attained by the moves.
bool is_solved(Problem& problem, const std::vector<double>& W, double excess, engine::Watch& watch) {
    if (!problem.has_bases(false)) return false;
    const std::vector<double> delta = plain_solves(problem, W, watch);
    for (Index p = 0; p < problem.n_x * problem.n_y; ++p) {
        const double value = problem.value[p], wanted = problem.worst(p, delta);
        if (!(value > wanted - 1e-10 && value < wanted + excess + 1e-10)) return false;
        if (problem.delta[problem.chosen[p]] != value || problem.least(problem.line[p], p, problem.delta) != value) return false;
    }
    return true;
}

/// Whether the best moves for the present plans are found.
bool finds_moves(Problem& problem, engine::Team& team, Random& random) {
    const engine::Game game = problem.game();
    std::vector<double> u(problem.n_x * problem.n_y + 1);
    for (double& entry : u) entry = uniform(random);
    std::vector<double> delta = problem.base;
    for (std::size_t k = 0; k < delta.size(); ++k)
        for (Index e = problem.at[k]; e < problem.at[k + 1]; ++e) delta[k] += problem.discount * problem.flow[e] * u[problem.target[e]];
    engine::select_plans(team, game);
    engine::improve_choices(team, game, u, 0.0);
    const auto chosen = [&](Index p) { return delta[problem.chosen[p]]; };
    const auto copied = [&](Index p) {
        double value = problem.base[problem.chosen[p]];
        for (Index e = problem.first[p]; e < problem.first[p + 1]; ++e) value += problem.discount * double(problem.selected_flow[e]) * u[problem.selected_target[e]];
        return value;
    };
    const Index pairs = problem.n_x * problem.n_y;
    for (Index p = 0; p < pairs; ++p)
        if (!near(chosen(p), problem.least(problem.line[p], p, delta)) || std::abs(copied(p) - chosen(p)) > 1e-5) return false;
    const engine::Change change = engine::improve_lines(team, game, u, 0.0);
    double low = engine::INF, high = -engine::INF;
    for (Index p = 0; p < pairs; ++p) {
        if (!near(chosen(p), problem.worst(p, delta)) || std::abs(copied(p) - chosen(p)) > 1e-5) return false;
        if (std::abs(double(problem.residual[p]) - (chosen(p) - u[p])) > 1e-5) return false;
        low = std::min(low, chosen(p) - u[p]), high = std::max(high, chosen(p) - u[p]);
    }
    return near(change.low, low) && near(change.high, high);
}

/// Mass in place gives a basis that keeps it there, and the reduced transport solves the whole one over a metric.
bool keeps_mass(Random& random, engine::Watch& watch) {
    const Index n = 2 + below(11, random);
    const bool full = random() % 2;
    Kernel x = random_kernel(1, n, full, random), y = random_kernel(1, n, full, random);
    if (random() % 8 == 0) y = x;
    const std::vector<double> W = random_table(n, n, true, random);
    const engine::Items items{x.rows(), y.rows(), n, {}, x.order, y.order};
    const Index a = x.rows().length(0), b = y.rows().length(0);
    std::vector<Index> at{0, a + b - 1};
    std::vector<std::int8_t> child(a + b - 1), parent(a + b - 1);
    std::vector<double> flow(a + b - 1), memory(a * b);
    const engine::Item<std::int8_t> item = engine::item_of<std::int8_t>(0, items, {at, child, parent, flow});
    engine::Workspace work(a + b, watch);
    engine::Reduced<std::int8_t> reduced(a, b);
    const engine::Costs costs = engine::costs_of(W, n, item.rows, item.cols, memory.data());
    double value = engine::INF;
    if (a == n && b == n) value = engine::staying_full(item, W, engine::nearest_states(W, n, watch), work.net);
    if (value < engine::INF && !near(value, engine::tree_value(item.tree, costs))) return false;
    if (value == engine::INF && !reduced.first_basis(item, W, n, work)) return false;
    if (!is_basis(item, true)) return false;
    std::vector<double> plan(a * b);
    for (Index k = 0; k < item.tree.edges; ++k) {
        const auto [i, j] = engine::cell_of(item.tree.child[k], item.tree.parent[k], a);
        plan[i * b + j] += item.tree.flow[k];
    }
    bool stays = true;
    engine::for_common_states(item.rows, item.cols, [&](Index i, Index j) {
        stays &= near(plan[i * b + j], std::min(item.m.p[i], item.m.q[j]));
    });
    const engine::Swept swept = reduced.solve(item, W, n, work, 1e-14);
    return stays && is_basis(item, false) && (swept.pivots == 0 || engine::is_priced_out(costs, item.tree, work.pot, 1e-12));
}

}  // namespace

bool check_games(Random& random) {
    const bool full = random() % 2, hollow = random() % 2, large = random() % 40 == 0;
    const Index n = large ? 16 : 1 + below(6, random);
    engine::Team team(2);
    engine::Watch watch(team);
    Problem problem(n, full, hollow, random);
    const double prices[] = {engine::INF, 0.1, 1e-13}, price = prices[below(3, random)];
    std::vector<double> W = random_table(problem.n_x, problem.n_y, hollow, random);
    engine::improve_pairs(team, problem.game(), W, engine::Basis::NONE, price);
    if (!is_solved(problem, W, price, watch) || (price == engine::INF && !problem.has_bases(true))) return false;
    for (int sweep = 0; sweep < 3; ++sweep) {
        const bool other = sweep == 2;
        if (other) problem.change_masses(random);
        if (!other && !finds_moves(problem, team, random)) return false;
        W = random_table(problem.n_x, problem.n_y, hollow && sweep == 0, random);
        if (!other) engine::improve_lines(team, problem.game(), std::vector<double>(W.begin(), W.end()), 0.0);
        engine::improve_pairs(team, problem.game(), W, other ? engine::Basis::OTHER : engine::Basis::FEASIBLE, 1e-13);
        if (!is_solved(problem, W, 0.0, watch)) return false;
    }
    return keeps_mass(random, watch);
}
