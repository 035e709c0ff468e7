// Transports of full rows, compared with the general simplex; lists of cells, with lists in double precision; and near rows,
// with the mean row alone.
#include "../dense.hpp"

#include <cmath>

#include "checks.hpp"

namespace {

using engine::Index;
using Random = std::mt19937_64;

double uniform(Random& random) { return double(random() >> 11) * 0x1p-53; }
Index below(Index n, Random& random) { return Index(random() % std::uint64_t(n)); }

/// Full rows over n states: random, uniform, with many ties, or with nearly all mass in one state.
struct Kernel {
    std::vector<Index> first{0}, states, order;
    std::vector<double> probabilities;

    Kernel(Index rows, Index n, Random& random) {
        for (Index i = 0; i < rows; ++i) {
            std::vector<double> masses = random_masses(n, random);
            for (Index k = 0; k < n; ++k) states.push_back(k), order.push_back(k), probabilities.push_back(masses[k]);
            first.push_back(Index(states.size()));
        }
    }

    engine::Rows rows() const { return {first, states, probabilities}; }

    static std::vector<double> random_masses(Index n, Random& random) {
        std::vector<double> masses(static_cast<std::size_t>(n));
        const Index kind = below(4, random), large = below(n, random);
        double total = 0.0;
        for (Index k = 0; k < n; ++k) {
            const double any[] = {0.01 + uniform(random), 1.0, double(1 + below(3, random)), k == large ? 1.0 : 1e-9};
            total += masses[k] = any[kind];
        }
        for (double& mass : masses) mass /= total;
        return masses;
    }
};

/// Random, with many ties, or distances on a line.
std::vector<double> random_table(Index n_x, Index n_y, Random& random) {
    const Index kind = below(3, random);
    std::vector<double> points(static_cast<std::size_t>(n_x + n_y)), W;
    for (double& point : points) point = uniform(random);
    for (Index s = 0; s < n_x; ++s)
        for (Index t = 0; t < n_y; ++t)
            W.push_back(kind == 0 ? uniform(random) : kind == 1 ? double(below(3, random)) / 3 : std::abs(points[s] - points[n_x + t]));
    return W;
}

/// All pairs of rows with their trees.
template <class Int> struct Problem {
    Kernel x, y;
    Index n_x, n_y;
    std::vector<Index> at{0};
    std::vector<Int> child, parent;
    std::vector<double> flow;

    Problem(Index rows_x, Index rows_y, Index n_x_, Index n_y_, Random& random)
        : x(rows_x, n_x_, random), y(rows_y, n_y_, random), n_x(n_x_), n_y(n_y_) {
        for (Index k = 0; k < rows_x * rows_y; ++k) at.push_back(at.back() + n_x + n_y - 1);
        child.resize(std::size_t(at.back())), parent.resize(child.size()), flow.resize(child.size());
    }

    engine::Transports transports() {
        return {{x.rows(), y.rows(), n_y, {}, x.order, y.order}, engine::Trees<Int>{at, child, parent, flow}};
    }

    /// Some rows change a little, others entirely.
    void change_masses(Random& random) {
        for (Kernel* kernel : {&x, &y})
            for (std::size_t i = 0; i + 1 < kernel->first.size(); ++i) {
                const Index from = kernel->first[i], n = kernel->first[i + 1] - from;
                const std::vector<double> masses = Kernel::random_masses(n, random);
                const double step = random() % 2 ? 1.0 : 0.01;
                for (Index k = 0; k < n; ++k) kernel->probabilities[from + k] += step * (masses[k] - kernel->probabilities[from + k]);
            }
    }
};

/// Whether the trees are spanning trees with the right marginals, and the values are those of the general simplex.
template <class Int>
bool is_solved(Problem<Int>& problem, const std::vector<double>& W, const std::vector<double>& values, double loss, engine::Watch& watch) {
    const engine::Transports transports = problem.transports();
    const engine::UncheckedTrees<Int> trees{problem.at, problem.child, problem.parent, problem.flow};
    if (engine::first_unfit(transports.items, trees, 1e-13, watch).second != engine::Unfit::NOTHING) return false;
    if (*std::min_element(problem.flow.begin(), problem.flow.end()) < 0.0) return false;
    std::vector<Int> child(problem.child.size()), parent(problem.child.size());
    std::vector<double> flow(problem.flow.size()), wanted(values.size());
    const engine::Trees<Int> others{problem.at, child, parent, flow};
    engine::ItemScratch scratch(problem.n_x, problem.n_y, watch);
    engine::solve_items<Int>(0, Index(values.size()), transports.items, others, W, {engine::Basis::NONE, 1e-14}, scratch, wanted);
    for (std::size_t k = 0; k < values.size(); ++k)
        if (!(values[k] > wanted[k] - 1e-12 && values[k] < wanted[k] + loss + 1e-12)) return false;
    return true;
}

/// Sweeps from nothing, for another table, and for other masses, with one thread and with two.
template <class Int> bool sweeps_agree(Random& random) {
    const Index n_x = 1 + below(40, random), n_y = 1 + below(40, random);
    Problem<Int> problem(1 + below(5, random), 1 + below(5, random), n_x, n_y, random);
    engine::Transports transports = problem.transports();
    if (!engine::fits_dense(transports, {2, 1})) return false;
    engine::Dense dense(transports);
    engine::Team team(2, {}, 1.0);
    engine::Watch watch(team);
    const double prices[] = {engine::INF, 0.1, 1e-6, 1e-14};
    for (int sweep = 0; sweep < 4; ++sweep) {
        const bool other = sweep == 3;
        if (other) problem.change_masses(random);
        const engine::Basis basis = sweep == 0 ? engine::Basis::NONE : other ? engine::Basis::OTHER : engine::Basis::FEASIBLE;
        const std::vector<double> W = random_table(n_x, n_y, random);
        const std::size_t size = problem.at.size() - 1;
        std::vector<double> values(size), slack(other && random() % 2 ? size : 0, 0.02);
        const double price = prices[std::min(below(4, random) + sweep, Index(3))];
        const engine::Swept swept = dense.solve(team, transports, W, {basis, price, slack}, values);
        if (swept.failed > 0) return false;
        // Plans with slack lack some mass: only solves without it must be optimal.
        if (slack.empty() && !is_solved(problem, W, values, price, watch)) return false;
        if (!slack.empty()) dense.solve(team, transports, W, {engine::Basis::NONE, 1e-14}, values);
    }
    return true;
}

/// Fast lists that must be complete have the rows of lists in double precision, where the last bit decides.
bool lists_agree(Random& random) {
    const Index a = 24, b = 30;
    Problem<std::int8_t> problem(1, 3, a, b, random);
    const engine::Transports transports = problem.transports();
    engine::Dense dense(transports);
    engine::Team team;
    engine::Watch watch(team);
    const std::vector<double> C = random_table(a, b, random);
    const engine::Shared& shared = dense.prepare(team, transports.items, C);
    engine::DenseTools tools(shared, watch);
    const double tols[] = {1e-2, 1e-4, 1e-6, 1e-8, 1e-14}, tol = tols[below(5, random)];
    double* pot = tools.work.pot;
    for (Index j = 0; j < b; ++j) pot[a + j] = shared.base[a + j] + tol * (2 * uniform(random) - 1);
    for (Index i = 0; i < a; ++i) {
        const double excess[] = {0.0, 1.0, 1.0 + 1e-9, 1.5, 3.0};
        pot[i] = engine::least_of(C.data() + i * b, pot + a, b) + excess[below(5, random)] * tol;
    }
    const auto listed = [&] {
        std::vector<std::pair<engine::Node, engine::Node>> cells;
        for (Index k = 0; k < tools.list.size; ++k) cells.push_back({tools.list.cells[k].row, tools.list.cells[k].column});
        return cells;
    };
    engine::list_fast(shared, tol, true, tools);
    const auto fast = listed();
    engine::list_all(shared, tol, tools);
    return fast == listed();
}

/// The dual simplex leaves little to do for the primal one, which is optimal by duality.
bool repairs(Random& random) {
    const Index a = 2 + below(38, random), b = 2 + below(38, random);
    Problem<std::int8_t> problem(2, 2, a, b, random);
    engine::Transports transports = problem.transports();
    engine::Dense dense(transports);
    engine::Team team;
    engine::Watch watch(team);
    const std::vector<double> W = random_table(a, b, random);
    const engine::Shared& shared = dense.prepare(team, transports.items, W);
    engine::DenseTools tools(shared, watch);
    const std::vector<double>&p = problem.x.probabilities, &q = problem.y.probabilities;
    const engine::Tree<std::int8_t> tree{problem.child.data(), problem.parent.data(), problem.flow.data(), a + b - 1};
    engine::northwest_corner({p.data(), q.data()}, problem.x.order.data(), problem.y.order.data(), a, b, tree);
    if (!engine::optimize_dense(tree, shared, tools, 1e-14, 1'000'000).done) return false;
    const engine::Pivoted again = engine::optimize_dense(tree, shared, tools, 1e-14, 1'000'000);
    if (again.pivots != 0 || !again.done) return false;
    const engine::Marginals other{p.data() + a, q.data() + b};
    if (!engine::repair_dense(tree, other, shared, tools).done) return true;  // a fresh start would be faster
    for (Index k = 0; k < tree.edges; ++k)
        if (tree.flow[k] < 0.0) return false;
    if (!engine::optimize_dense(tree, shared, tools, 1e-14, 1'000'000).done) return false;
    engine::true_flows(tree, other, a, b, tools.work.net);
    double dual = 0.0;
    for (Index i = 0; i < a; ++i) dual += other.p[i] * tools.work.pot[i];
    for (Index j = 0; j < b; ++j) dual += other.q[j] * tools.work.pot[a + j];
    return std::abs(dual - engine::tree_value(tree, engine::Costs{W.data(), b, a, b})) < 1e-12;
}

/// Give row i the masses weight(0), weight(1), …, up to a factor.
template <class Weight> void fill_row(Kernel& kernel, Index i, Weight&& weight) {
    const Index from = kernel.first[i], n = kernel.first[i + 1] - from;
    double total = 0.0;
    for (Index t = 0; t < n; ++t) total += kernel.probabilities[from + t] = weight(t);
    for (Index t = 0; t < n; ++t) kernel.probabilities[from + t] /= total;
}

/// Costs between points of a line, and rows of Y that are near one another: starting from near rows takes fewer pivots than
/// starting from the mean.
bool near_rows_save_pivots(Random& random) {
    const Index n = 60, rows = 40;
    Problem<std::int16_t> problem(1, rows, n, n, random);
    std::vector<double> x(n), y(n), W;
    for (Index k = 0; k < n; ++k) x[k] = uniform(random), y[k] = uniform(random);
    for (Index s = 0; s < n; ++s)
        for (Index t = 0; t < n; ++t) W.push_back(std::abs(x[s] - y[t]) + 0.001 * uniform(random));
    fill_row(problem.x, 0, [&](Index) { return 0.01 + uniform(random); });
    for (Index j = 0; j < rows; ++j) {
        const double middle = uniform(random);
        fill_row(problem.y, j, [&](Index t) { return (0.01 + uniform(random)) * std::exp(-3 * std::abs(middle - y[t])); });
    }
    engine::Transports transports = problem.transports();
    engine::Dense dense(transports);
    engine::Team team;
    engine::Watch watch(team);
    const engine::Shared& shared = dense.prepare(team, transports.items, W);
    engine::DenseTools tools(shared, watch);
    const double* p = problem.x.probabilities.data();
    const auto tree_of = [&](Index j) {
        const Index first = problem.at[j];
        return engine::Tree<std::int16_t>{problem.child.data() + first, problem.parent.data() + first, problem.flow.data() + first, 2 * n - 1};
    };
    std::vector<std::int16_t> child(2 * n - 1), parent(2 * n - 1);
    std::vector<double> flow(2 * n - 1);
    const engine::Tree<std::int16_t> hub{child.data(), parent.data(), flow.data(), 2 * n - 1};
    engine::northwest_corner({p, shared.mean.data()}, problem.x.order.data(), problem.x.order.data(), n, n, hub);
    if (!engine::optimize_dense(hub, shared, tools, 1e-14, 1'000'000).done) return false;
    Index from_mean = 0, from_near = 0;
    for (const bool near : {false, true})
        for (const Index j : shared.order) {
            const engine::Marginals m{p, problem.y.probabilities.data() + j * n};
            const engine::Tree<std::int16_t> tree = tree_of(j), source = near && shared.near[j] >= 0 ? tree_of(shared.near[j]) : hub;
            std::copy(source.child, source.child + source.edges, tree.child);
            std::copy(source.parent, source.parent + source.edges, tree.parent);
            const engine::Pivoted repaired = engine::repair_dense(tree, m, shared, tools);
            const Index* order_q = problem.y.order.data() + j * n;
            if (!repaired.done) engine::northwest_corner(m, problem.x.order.data(), order_q, n, n, tree);  // it took too many pivots
            const engine::Pivoted more = engine::optimize_dense(tree, shared, tools, 1e-14, 1'000'000);
            if (!more.done) return false;
            (near ? from_near : from_mean) += repaired.pivots + more.pivots;
        }
    return double(from_near) <= 0.9 * double(from_mean);
}

/// 16 bits may choose a wrong cell, which costs a primal pivot, but rarely do.
bool repair_leaves_little(Random& random) {
    const Index n = 30, rows = 20;
    Problem<std::int8_t> problem(1, rows, n, n, random);
    engine::Transports transports = problem.transports();
    engine::Dense dense(transports);
    engine::Team team;
    engine::Watch watch(team);
    std::vector<double> W;
    for (Index k = 0; k < n * n; ++k) W.push_back(uniform(random));
    for (Index j = 0; j < rows; ++j) fill_row(problem.y, j, [&](Index) { return 0.01 + uniform(random); });
    const engine::Shared& shared = dense.prepare(team, transports.items, W);
    engine::DenseTools tools(shared, watch);
    const std::vector<double> p(std::size_t(n), 1.0 / double(n));
    const engine::Tree<std::int8_t> tree{problem.child.data(), problem.parent.data(), problem.flow.data(), 2 * n - 1};
    const std::vector<Index>& order = problem.x.order;
    engine::northwest_corner({p.data(), problem.y.probabilities.data()}, order.data(), order.data(), n, n, tree);
    if (!engine::optimize_dense(tree, shared, tools, 1e-14, 1'000'000).done) return false;
    Index dual = 0, primal = 0;
    for (Index j = 1; j < rows; ++j) {
        const engine::Pivoted repaired = engine::repair_dense(tree, {p.data(), problem.y.probabilities.data() + j * n}, shared, tools);
        if (!repaired.done) return false;
        dual += repaired.pivots, primal += engine::optimize_dense(tree, shared, tools, 1e-14, 1'000'000).pivots;
    }
    return dual > 0 && double(primal) <= 0.05 * double(dual);
}

}  // namespace

bool check_dense(Random& random) {
    const Index type = below(3, random);
    const bool agree = type == 0 ? sweeps_agree<std::int8_t>(random) : type == 1 ? sweeps_agree<std::int16_t>(random) : sweeps_agree<std::int32_t>(random);
    const bool saves = below(20, random) > 0 || (near_rows_save_pivots(random) && repair_leaves_little(random));
    return agree && saves && lists_agree(random) && repairs(random);
}
