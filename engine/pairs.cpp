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

/// Extremes that are found piece by piece; no result depends on the order.
class Collected {
  public:
    ALWAYS_INLINE static void add(Extremes& found, double fresh, double old) {
        const double change = fresh - old;
        found.low = change < found.low ? change : found.low;
        found.high = change > found.high ? change : found.high;
        found.least = std::min(found.least, std::min(fresh, old));
        found.largest = std::max(found.largest, std::max(fresh, old));
    }

    void join(const Extremes& more, bool unknown) {
        const std::lock_guard lock(guard_);
        all_.low = std::min(all_.low, more.low), all_.high = std::max(all_.high, more.high);
        all_.least = std::min(all_.least, more.least), all_.largest = std::max(all_.largest, more.largest);
        unknown_ |= unknown;
    }

    Extremes result() const {
        return unknown_ ? Extremes{NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER} : all_;
    }

  private:
    std::mutex guard_;
    Extremes all_;
    bool unknown_ = false;
};

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
    Collected all;
    Extremes found;
    bool unknown = false;
    for (std::size_t k = 0; k < TU.size(); ++k) {
        const double old = U[listed.empty() ? k : std::size_t(listed[k])];
        Collected::add(found, TU[k], old);
        unknown |= std::isnan(TU[k] - old);
    }
    all.join(found, unknown);
    return all.result();
}

Extremes settle(Team& team, const CostTerm& term, View<double> U, Out<double> TU) {
    const double γ = term.discount;
    Collected all;
    split(team, Index(U.size()), double(U.size()), [&](Index lo, Index hi, Watch& watch) {
        Extremes found;
        bool unknown = false;
        for (Index z = lo; z < hi; ++z) {
            TU[z] = (1 - γ) * (term.cost[z] / term.scale) + γ * TU[z];
            Collected::add(found, TU[z], U[z]);
            unknown |= std::isnan(TU[z] - U[z]);
        }
        all.join(found, unknown);
        watch.spend(hi - lo);
    });
    return all.result();
}

void exchange(Team& team, double middle, double shift, Out<double> U, View<double> TU, Out<float> residual) {
    split(team, Index(U.size()), double(U.size()), [&](Index lo, Index hi, Watch& watch) {
        for (Index z = lo; z < hi; ++z) {
            residual[z] = float(TU[z] - U[z] - middle);
            U[z] = TU[z] + shift;
        }
        watch.spend(hi - lo);
    });
}

void add_difference(Team& team, View<float> fresh, View<float> old, Out<double> U) {
    split(team, Index(U.size()), double(U.size()), [&](Index lo, Index hi, Watch& watch) {
        for (Index z = lo; z < hi; ++z) U[z] += double(fresh[z]) - double(old[z]);
        watch.spend(hi - lo);
    });
}

}  // namespace engine
