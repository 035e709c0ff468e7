#include "small.hpp"

#include <cmath>
#include <numeric>

#include "krylov.hpp"

namespace engine {

namespace {

/// The smallest positive number. Bounds for costs of this order have few digits.
constexpr double SMALLEST = std::numeric_limits<double>::denorm_min();

/// A run has stalled if this many checks in a row do not halve the gap, while it is within NEAR of what rounding allows.
constexpr int PATIENCE = 4;
constexpr double NEAR = 100.0;

/// No iteration starts that would end after this multiple of the time limit, if it took as long as the last one.
constexpr double OVERRUN = 1.2;

/// Iterations of BiCGStab, and its smallest target.
constexpr Index MAX_KRYLOV_STEPS = 150;
constexpr double LEAST_RESIDUAL = 4 * EPS;

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Systems of up to this many pairs are solved by elimination, which is faster there than BiCGStab.
constexpr Index MAX_PAIRS_FOR_ELIMINATION = 64;

/// Work of a pair of states per successor, in units of a Watch.
constexpr double WORK_FOR_A_PAIR_OF_STATES = 50;

/// The positions of the entries of every row, sorted stably by the key of their state.
std::vector<Index> order_by(const Rows& rows, const std::vector<double>& key) {
    std::vector<Index> order(rows.states.size());
    for (Index i = 0; i < rows.size(); ++i) {
        const Index first = rows.first[i], n = rows.length(i);
        for (Index k = 0; k < n; ++k) {
            Index at = k;
            const double here = key[rows.states[first + k]];
            for (; at > 0 && key[rows.states[first + order[first + at - 1]]] > here; --at) order[first + at] = order[first + at - 1];
            order[first + at] = k;
        }
    }
    return order;
}

/// The states where a chain can start, and their probabilities.
void support_of(View<double> initial, std::vector<Index>& states, std::vector<double>& law) {
    for (Index s = 0; s < Index(initial.size()); ++s)
        if (initial[s] > 0.0) states.push_back(s), law.push_back(initial[s]);
}

StartArrays start_of(const SmallProblem& problem) {
    StartArrays start;
    support_of(problem.x.initial, start.rows, start.p);
    support_of(problem.y.initial, start.cols, start.q);
    const Index a = Index(start.p.size()), b = Index(start.q.size());
    start.child.resize(a + b - 1), start.parent.resize(a + b - 1), start.flow.resize(a + b - 1), start.pot.resize(a + b);
    std::vector<Index> count(std::max(a, b));
    std::iota(count.begin(), count.end(), 0);
    northwest_corner({start.p.data(), start.q.data()}, count.data(), count.data(), a, b, start.view().tree);
    return start;
}

/// A run: the table, the trees of all transports, and the coupling of the starts.
class SmallRun {
  public:
    SmallRun(const SmallProblem& problem, const SmallStart& start, const SmallLimits& limits, Watch& watch)
        : problem_(problem), limits_(limits), watch_(watch), gamma_(problem.discount), is_cold_(start.values.empty()), costs_(CostRange::of(problem.cost)),
          scratch_(problem.x.rows.longest(), problem.y.rows.longest(), watch) {
        make_items();
        make_trees(start);
        make_table(start);
        found_.start = start_of(problem);
        found_.unbalanced = unbalanced_mass(problem.x.rows.first, problem.x.rows.probabilities) +
                            unbalanced_mass(problem.y.rows.first, problem.y.rows.probabilities);
        found_.clipped = 0.0;
        price_ = is_cold_ && !is_eliminated() ? std::max(PRICE, FIRST * (1 - gamma_)) : PRICE;
    }

    SmallSolution run() {
        const double begin = seconds_now();
        double before = begin, best = INF;
        if (is_cold_ && is_eliminated() && !take_first_plans()) return std::move(found_);  // STAGNATED
        int stalled = 0;
        for (Index iteration = 1;; ++iteration) {
            improve();
            const double now = seconds_now(), next_ends = iteration > 1 ? 2 * now - before : now;
            const bool late = now > begin + limits_.seconds || next_ends > begin + OVERRUN * limits_.seconds;
            before = now;
            const double gap = check();
            stalled = gap < best / 2 ? 0 : stalled + 1;
            best = stalled == 0 ? gap : best;
            const bool at_limit = stalled >= PATIENCE && gap <= NEAR * least_gap();
            const bool spent = iteration >= limits_.max_iterations;
            if (gap <= limits_.tol || at_limit || spent || late) {
                found_.ended = gap <= limits_.tol ? Ended::CONVERGED : at_limit ? Ended::ROUNDING : spent ? Ended::ITERATIONS : Ended::TIME;
                break;
            }
            if (!evaluate()) break;  // STAGNATED
        }
        return std::move(found_);
    }

  private:
    const SmallProblem& problem_;
    SmallLimits limits_;
    Watch& watch_;
    Team alone_;  // small vectors are not worth other threads
    double gamma_;
    bool is_cold_;
    CostRange costs_;
    ItemScratch scratch_;
    SmallSolution found_;
    Items items_;
    std::vector<double> base_, TU_;  // (1-γ) c, and T U, at the pairs that are solved
    std::vector<double> system_;  // of an elimination, by rows
    std::vector<std::int32_t> number_, target_;  // of every pair, -1 if it is not solved; of every edge
    Basis basis_ = Basis::NONE;
    double price_ = PRICE;
    Band band_{};
    double spread_ = 0.0;  // of the last change
    Index pivots_ = 0, improvements_ = 0, products_ = 0;

    Index pair(Index k) const { return found_.listed.empty() ? k : found_.listed[k]; }
    Trees<std::int8_t> trees() { return {found_.at, found_.child, found_.parent, found_.flow}; }

    void make_items() {
        std::vector<double> scaled(problem_.cost.size());
        for (std::size_t z = 0; z < scaled.size(); ++z) scaled[z] = problem_.cost[z] / costs_.unit();
        const Keys keys = sort_keys(alone_, scaled, problem_.n_y());
        found_.order_x = order_by(problem_.x.rows, keys.x), found_.order_y = order_by(problem_.y.rows, keys.y);
        if (problem_.reachable) found_.listed = reachable_pairs(problem_);
        items_ = {problem_.x.rows, problem_.y.rows, problem_.n_y(), found_.listed, found_.order_x, found_.order_y};
        const Index size = items_.size();
        base_.resize(size), TU_.resize(size);
        for (Index k = 0; k < size; ++k) base_[k] = (1 - gamma_) * scaled[pair(k)];
        found_.U = std::move(scaled);
    }

    void make_trees(const SmallStart& start) {
        const Index size = items_.size();
        found_.at.resize(size + 1);
        for (Index k = 0; k < size; ++k) {
            const auto [i, j] = items_.rows_of(k);
            found_.at[k + 1] = found_.at[k] + items_.x.length(i) + items_.y.length(j) - 1;
        }
        const std::size_t edges = std::size_t(found_.at[size]);
        found_.flow.resize(edges);
        if (start.child.size() == edges && edges > 0) {
            found_.child.assign(start.child.begin(), start.child.end());
            found_.parent.assign(start.parent.begin(), start.parent.end());
            basis_ = Basis::OTHER;
        } else {
            found_.child.resize(edges), found_.parent.resize(edges);
        }
        target_.resize(edges);
        if (found_.listed.empty()) return;
        number_.assign(problem_.cost.size(), -1);
        for (Index k = 0; k < size; ++k) number_[found_.listed[k]] = std::int32_t(k);
    }

    /// The table to start from: (1-γ) c, or known values, clipped to the range of the costs, which contains the fixed
    /// point. Values that are missing are replaced by the cost.
    void make_table(const SmallStart& start) {
        std::vector<double>& U = found_.U;  // the scaled cost
        if (start.values.empty()) {
            for (double& u : U) u = (1 - gamma_) * u;
            return;
        }
        const double least = costs_.least / costs_.unit(), largest = costs_.largest / costs_.unit();
        for (std::size_t z = 0; z < U.size(); ++z) {
            const double value = start.values[z] / costs_.unit();
            U[z] = std::isnan(value) ? U[z] : std::min(std::max(value, least), largest);
        }
    }

    /// Whether plans are evaluated by elimination. Their tables are then exact, and every pivot that gains anything is made.
    bool is_eliminated() const { return Index(base_.size()) <= MAX_PAIRS_FOR_ELIMINATION; }

    /// Start a cold run from the table of the first bases; false if that cannot be computed.
    bool take_first_plans() {
        solve_items(0, items_.size(), items_, trees(), View<double>(found_.U), {basis_, INF, {}}, scratch_, Out<double>(TU_));
        basis_ = Basis::FEASIBLE;
        return eliminate();
    }

    /// Compute T U and optimal plans; U becomes the middle of the certified interval.
    void improve() {
        const Index size = items_.size();
        const Swept swept = solve_items(0, size, items_, trees(), View<double>(found_.U), {basis_, price_, {}}, scratch_, Out<double>(TU_));
        found_.clipped = std::max(found_.clipped, swept.clipped);
        pivots_ += swept.pivots, ++improvements_;
        basis_ = Basis::FEASIBLE;
        for (Index k = 0; k < size; ++k) TU_[k] = TU_[k] * gamma_ + base_[k];
        const Extremes change = extremes(found_.listed, TU_, found_.U);
        const Index nodes = items_.x.longest() + items_.y.longest();
        band_ = band_of(change, {nodes, found_.unbalanced, found_.clipped}, gamma_, price_);
        for (Index k = 0; k < size; ++k) found_.U[pair(k)] = TU_[k] + band_.shift;
        if (swept.failed > 0) band_.half = INF;
        spread_ = change.high - change.low;
    }

    /// Compute the distance for the table, and its bounds; returns the certified gap.
    double check() {
        const StartValue start = solve_start(found_.start.view(), found_.U, problem_.n_y(), PRICE, watch_);
        const Bounds bounds = bounds_of(start, band_.gap() / 2, costs_);
        found_.history.push_back({bounds, pivots_, improvements_, products_});
        return bounds.gap;
    }

    /// The smallest gap that rounding allows.
    double least_gap() const { return 2 * band_.rounding + PRICE / (1 - gamma_) + 4 * SMALLEST / costs_.unit(); }

    /// Compute the table of the plans; its accuracy and the price of pivots depend on the last change. False if the
    /// iteration stagnates.
    bool evaluate() {
        const double target = std::max({ROUGH * spread_, 0.1 * limits_.tol * (1 - gamma_), LEAST_RESIDUAL});
        price_ = is_eliminated() ? PRICE : std::max(PRICE, LOOSE * spread_);
        if (is_eliminated()) return eliminate();
        find_targets();
        const auto product = [this](View<double> v, Out<double> out) { apply(v, out); };
        if (found_.listed.empty())
            return bicgstab(alone_, product, View<double>(base_), Out<double>(found_.U), target, MAX_KRYLOV_STEPS) <= 2 * target;
        std::vector<double> u(base_.size());
        for (std::size_t k = 0; k < u.size(); ++k) u[k] = found_.U[found_.listed[k]];
        const double residual = bicgstab(alone_, product, View<double>(base_), Out<double>(u), target, MAX_KRYLOV_STEPS);
        for (std::size_t k = 0; k < u.size(); ++k) found_.U[found_.listed[k]] = u[k];
        return residual <= 2 * target;
    }

    /// The table of the plans by elimination, which needs no exchanges: I - γ Π is diagonally dominant.
    bool eliminate() {
        const Index n = items_.size(), width = (n + N_DOUBLES) / N_DOUBLES * N_DOUBLES;  // the last column is the right-hand side
        system_.assign(n * width, 0.0);
        for (Index k = 0; k < n; ++k) system_[k * width + k] = 1.0, system_[k * width + n] = base_[k];
        each_edge([&](Index k, Index e, Index to) { system_[k * width + to] -= gamma_ * found_.flow[e]; });
        for (Index k = 0; k < n; ++k) {
            const double* line = system_.data() + k * width;
            if (!(line[k] > 0.0)) return false;
            const double scale = 1.0 / line[k];
            for (Index i = k + 1; i < n; ++i) {
                double* row = system_.data() + i * width;
                if (row[k] == 0.0) continue;
                const double factor = row[k] * scale;
                for (Index j = (k + 1) / N_DOUBLES * N_DOUBLES; j < width; j += N_DOUBLES)  // entries before k + 1 are not read again
                    Register::store(row + j, Register::load(row + j) - factor * Register::load(line + j));
            }
        }
        std::vector<double> u(n);
        for (Index k = n - 1; k >= 0; --k) {
            const double* line = system_.data() + k * width;
            u[k] = (line[n] - dot(line + k + 1, u.data() + k + 1, n - k - 1)) / line[k];
        }
        for (Index k = 0; k < n; ++k) found_.U[pair(k)] = u[k];
        watch_.spend(n * n * n / 12);
        return true;
    }

    /// Call run(k, e, to) for every edge e of every pair k, which leads to the pair with the number `to`.
    template <class Run> ALWAYS_INLINE void each_edge(Run&& run) {
        for (Index k = 0; k < items_.size(); ++k) {
            const auto [i, j] = items_.rows_of(k);
            const View<Index> rows = items_.x.states_of(i), cols = items_.y.states_of(j);
            for (Index e = found_.at[k]; e < found_.at[k + 1]; ++e) {
                const auto [s, t] = cell_of(found_.child[e], found_.parent[e], Index(rows.size()));
                const Index z = rows[s] * items_.n_y + cols[t];
                run(k, e, number_.empty() ? z : Index(number_[z]));
            }
        }
    }

    void find_targets() {
        each_edge([this](Index, Index e, Index to) { target_[e] = std::int32_t(to); });
    }

    /// out = (I - γ Π) v
    void apply(View<double> v, Out<double> out) {
        ++products_;
        for (Index k = 0; k < items_.size(); ++k) {
            double total = 0.0;
            for (Index e = found_.at[k]; e < found_.at[k + 1]; ++e) total += found_.flow[e] * v[target_[e]];
            out[k] = v[k] - gamma_ * total;
        }
        watch_.spend(Index(found_.flow.size()));
    }
};

/// The costs |r_X - r_Y|, or their squares; false if one is not finite.
bool reward_costs(View<double> r_x, View<double> r_y, bool squared, std::vector<double>& cost) {
    cost.clear();
    bool finite = true;
    for (const double x : r_x)
        for (const double y : r_y) {
            const double c = std::abs(x - y);
            cost.push_back(squared ? c * c : c);
            finite &= cost.back() < INF;
        }
    return finite;
}

}  // namespace

std::vector<Index> reachable_pairs(const SmallProblem& problem) {
    const Index n_x = problem.n_x(), n_y = problem.n_y();
    std::vector<Index> first;
    for (Index x = 0; x < n_x; ++x)
        for (Index y = 0; y < n_y; ++y)
            if (problem.x.initial[x] > 0.0 && problem.y.initial[y] > 0.0) first.push_back(x * n_y + y);
    constexpr Index ONE_CHOICE[] = {0, 0};
    bool seen[MAX_STATES_OF_SMALL * MAX_STATES_OF_SMALL / 4] = {};  // n_X n_Y is largest where both are half of the sum
    Team alone;
    Watch watch(alone);
    std::vector<Index> found = reachable({problem.x.rows, problem.y.rows, n_x, n_y, ONE_CHOICE}, Out<bool>(seen), first, watch);
    std::sort(found.begin(), found.end());
    return found;
}

SmallSolution solve_small(const SmallProblem& problem, const SmallStart& start, const SmallLimits& limits, Watch& watch) {
    return SmallRun(problem, start, limits, watch).run();
}

Chain ChainList::chain(Index k) const {
    const Index n = at[k + 1] - at[k], edges = first[k + 1] - first[k];
    return {
        {rows.first.subspan(at[k] + k, n + 1), rows.states.subspan(first[k], edges), rows.probabilities.subspan(first[k], edges)},
        initial.subspan(at[k], n),
    };
}

void solve_many(Team& team, const ManyProblems& problems, Out<double> value, Out<double> lower, Out<double> upper) {
    const ChainList& chains = problems.chains;
    const Index size = Index(problems.pairs.size()) / 2;
    const auto states = [&](Index c) { return chains.at[c + 1] - chains.at[c]; };
    std::vector<Index> table_at(problems.tables.empty() ? 0 : size + 1);
    double work = 0.0;
    for (Index k = 0; k < size; ++k) {
        const Index i = problems.pairs[2 * k], j = problems.pairs[2 * k + 1], cells = states(i) * states(j);
        if (!table_at.empty()) table_at[k + 1] = table_at[k] + cells;
        work += WORK_FOR_A_PAIR_OF_STATES * double(cells) * double(states(i) + states(j));
    }
    split(team, size, work, [&](Index lo, Index hi, Watch& watch) {
        std::vector<double> cost;
        for (Index k = lo; k < hi; ++k) {
            const Index i = problems.pairs[2 * k], j = problems.pairs[2 * k + 1];
            value[k] = NOT_A_NUMBER, lower[k] = -INF, upper[k] = INF;
            if (states(i) + states(j) > MAX_STATES_OF_SMALL) continue;
            View<double> table;
            if (table_at.empty()) {
                if (!reward_costs(chains.rewards_of(i), chains.rewards_of(j), problems.squared, cost)) continue;
                table = cost;
            } else {
                table = problems.tables.subspan(table_at[k], table_at[k + 1] - table_at[k]);
            }
            const SmallProblem problem{chains.chain(i), chains.chain(j), table, problems.discount};
            const SmallSolution found = solve_small(problem, {}, problems.limits, watch);
            watch.spend(Index(found.flow.size()) * 10);
            if (found.ended != Ended::CONVERGED) continue;
            value[k] = found.bounds().value, lower[k] = found.bounds().lower, upper[k] = found.bounds().upper;
        }
    });
}

}  // namespace engine
