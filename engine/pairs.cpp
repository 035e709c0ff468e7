#include "pairs.hpp"

#include <mutex>

namespace engine {
namespace {

/// Steps of the power iteration for the keys: only their order matters.
constexpr int STEPS = 8;

double mean(const std::vector<double>& v) {
    return sum_of(Index(v.size()), [&](Index k) { return v[std::size_t(k)]; }) / double(v.size());
}

/// out = cost (v - mean v)
void multiply(Team& team, View<double> cost, std::vector<double>& v, std::vector<double>& out) {
    const Index n_y = Index(v.size()), n_x = Index(out.size());
    const double level = mean(v);
    for (double& entry : v) entry -= level;
    split(team, n_x, double(cost.size()), [&](Index lo, Index hi, Watch& watch) {
        for (Index x = lo; x < hi; ++x) {
            out[x] = dot(cost.data() + x * n_y, v.data(), n_y);
            watch.spend(n_y);
        }
    });
}

/// out = costᵀ (u - mean u), summed over pieces of the rows that depend on their number only.
void multiply_transposed(Team& team, View<double> cost, const std::vector<double>& u, std::vector<double>& out) {
    const Index n_y = Index(out.size()), n_x = Index(u.size()), pieces = even_pieces(n_x, double(cost.size()));
    const double level = mean(u);
    std::vector<std::vector<double>> sums(pieces, std::vector<double>(n_y));
    split(team, pieces, double(cost.size()), [&](Index from, Index to, Watch& watch) {
        for (Index k = from; k < to; ++k)
            for (Index x = n_x * k / pieces; x < n_x * (k + 1) / pieces; ++x) {
                const double weight = u[x] - level, *line = cost.data() + x * n_y;
                double* sum = sums[k].data();
                for (Index y = 0; y < n_y; ++y) sum[y] += weight * line[y];
                watch.spend(n_y);
            }
    });
    out = std::move(sums[0]);
    for (Index k = 1; k < pieces; ++k)
        for (Index y = 0; y < n_y; ++y) out[y] += sums[k][y];
}

/// The extremes of one piece. Minima and maxima do not depend on the order; vectors hold those of every lane.
struct Lanes {
    Doubles low = Doubles{} + INF, high = -low, least = {}, largest = Doubles{} + 1.0;
    Longs unknown = {};

    ALWAYS_INLINE void add(Doubles fresh, Doubles old) {
        const Doubles change = fresh - old;
        low = change < low ? change : low, high = change > high ? change : high;
        least = fresh < least ? fresh : least, least = old < least ? old : least;
        largest = fresh > largest ? fresh : largest, largest = old > largest ? old : largest;
        unknown |= change != change;
    }

    Extremes result() const {
        Extremes found;
        for (Index k = 0; k < N_DOUBLES; ++k) {
            found.low = std::min(found.low, low[k]), found.high = std::max(found.high, high[k]);
            found.least = std::min(found.least, least[k]), found.largest = std::max(found.largest, largest[k]);
        }
        return any_of(unknown) ? Extremes{NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER} : found;
    }
};

/// How many entries of a table are processed between two checks whether to stop; they fit in the cache.
constexpr Index BLOCK = 4096;

/// Call run(lo, hi) on all entries of a table, with all threads.
template <class Run> void for_blocks(Team& team, std::size_t size, Run&& run) {
    split(team, Index(size), double(size), [&](Index from, Index to, Watch& watch) {
        for (Index lo = from; lo < to; lo += BLOCK) {
            const Index hi = std::min(lo + BLOCK, to);
            run(lo, hi);
            watch.spend(hi - lo);
        }
    });
}

/// The extremes of two pieces.
Extremes both(const Extremes& one, const Extremes& other) {
    if (std::isnan(one.low) || std::isnan(other.low)) return {NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER};
    return {
        std::min(one.low, other.low), std::max(one.high, other.high), std::min(one.least, other.least), std::max(one.largest, other.largest)
    };
}

}  // namespace

std::vector<Index> reachable(const PairSuccessors& successors, Out<bool> seen, View<Index> first, Watch& watch) {
    const auto& [x, y, n_x, n_y, choices] = successors;
    std::vector<Index> found(first.begin(), first.end());
    for (const Index z : first) seen[z] = true;
    for (std::size_t head = 0; head < found.size(); ++head) {
        const Index s = found[head] / n_y, t = found[head] % n_y;
        for (std::size_t c = 0; c < choices.size(); c += 2) {
            const View<Index> rows = x.states_of(choices[c] * n_x + s), cols = y.states_of(choices[c + 1] * n_y + t);
            for (const Index to_x : rows)
                for (const Index to_y : cols) {
                    const Index z = to_x * n_y + to_y;
                    if (seen[z]) continue;
                    seen[z] = true;
                    found.push_back(z);
                }
            watch.spend(Index(rows.size() * cols.size()) + 8);
        }
    }
    return found;
}

Keys sort_keys(Team& team, View<double> cost, Index n_y) {
    Keys keys{std::vector<double>(cost.size() / std::size_t(n_y)), std::vector<double>(std::size_t(n_y))};
    std::vector<double>&u = keys.x, &v = keys.y;
    for (Index y = 0; y < n_y; ++y) v[y] = cost[y] + (-1.0 + 2.0 * double(y) / double(std::max<Index>(n_y - 1, 1)));
    for (int step = 0; step < STEPS; ++step) {
        multiply(team, cost, v, u);
        multiply_transposed(team, cost, u, v);
        const double level = mean(v);
        double norm = 0.0;
        for (const double entry : v) norm = std::max(norm, std::abs(entry - level));
        if (!(norm > 0.0)) break;
        for (double& entry : v) entry /= norm;
    }
    for (double& entry : v) entry = -entry;
    return keys;
}

Extremes extremes(View<Index> listed, View<double> TU, View<double> U) {
    Lanes found;
    const Index size = Index(TU.size());
    Index k = 0;
    if (listed.empty())
        for (; k + N_DOUBLES <= size; k += N_DOUBLES) found.add(doubles_at(&TU[k]), doubles_at(&U[k]));
    for (; k < size; ++k) found.add(Doubles{} + TU[k], Doubles{} + U[listed.empty() ? k : listed[k]]);
    return found.result();
}

Extremes settle(Team& team, const CostTerm& term, View<double> U, Out<double> TU) {
    const double γ = term.discount;
    Extremes all;
    std::mutex guard;
    for_blocks(team, U.size(), [&](Index lo, Index hi) {
        for (Index z = lo; z < hi; ++z) TU[z] = (1 - γ) * (term.cost[z] / term.scale) + γ * TU[z];
        const Extremes found = extremes({}, View<double>(TU).subspan(lo, hi - lo), U.subspan(lo, hi - lo));
        const std::lock_guard lock(guard);
        all = both(all, found);
    });
    return all;
}

void exchange(Team& team, double middle, double shift, Out<double> U, View<double> TU, Out<float> residual) {
    for_blocks(team, U.size(), [&](Index lo, Index hi) {
        for (Index z = lo; z < hi; ++z) {
            residual[z] = float(TU[z] - U[z] - middle);
            U[z] = TU[z] + shift;
        }
    });
}

void add_difference(Team& team, View<float> fresh, View<float> old, Out<double> U) {
    for_blocks(team, U.size(), [&](Index lo, Index hi) {
        for (Index z = lo; z < hi; ++z) U[z] += double(fresh[z]) - double(old[z]);
    });
}

}  // namespace engine
