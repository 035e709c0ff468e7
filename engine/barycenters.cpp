#include "barycenters.hpp"

namespace engine {
namespace {

constexpr Index LANES = 4;

/// Numbers of four edges, or of four states.
struct Four {
    typedef double Vector __attribute__((vector_size(LANES * 8)));
    Vector v;

    double sum() const { return (v[0] + v[2]) + (v[1] + v[3]); }
};

using Fours = std::vector<Four>;

/// Maximum number of iterations, and length of a step as a fraction of the distance to the boundary.
constexpr int MAX_ITERATIONS = 100;
constexpr double SHARE = 0.99;

/// Largest average error of the column sums of the plans; a larger one means that rounding errors have taken over.
constexpr double FEASIBLE = 1e-7;

/// A pivot of at most this counts as zero, and its column does not move.
constexpr double NO_PIVOT = 1e-200;

/// Edges with at most this fraction of the mass of their row are dropped: less than the rounding error of its sum.
constexpr double NEGLIGIBLE = 1e-16;

/// A cost below this fraction of the largest possible one counts as zero when the gap is compared with it.
constexpr double ZERO_COST = 1e-6;

/// Lengths of the steps of plans and slacks.
struct Lengths {
    double primal = 0.0, dual = 0.0;
};

/// The longest step, up to `most`, for which a + step d stays nonnegative.
double longest_step(const std::vector<double>& a, const std::vector<double>& d, double most) {
    for (std::size_t j = 0; j < a.size(); ++j)
        if (a[j] + most * d[j] < 0) most = -a[j] / d[j];
    return most;
}

double inner(const std::vector<double>& u, const std::vector<double>& v) {
    double total = 0.0;
    for (std::size_t j = 0; j < u.size(); ++j) total += u[j] * v[j];
    return total;
}

/// Replace a symmetric positive definite matrix (n, n) by its inverse (Gauss-Jordan elimination).
void invert(std::vector<double>& A, Index n) {
    for (Index p = 0; p < n; ++p) {
        double* pivot = &A[p * n];
        const double d = pivot[p] > NO_PIVOT ? 1 / pivot[p] : 0.0;
        pivot[p] = 1.0;
        for (Index j = 0; j < n; ++j) pivot[j] *= d;
        for (Index i = 0; i < n; ++i) {
            if (i == p) continue;
            const double f = A[i * n + p];
            A[i * n + p] = 0.0;
            for (Index j = 0; j < n; ++j) A[i * n + j] -= f * pivot[j];
        }
    }
}

/// Factor the Laplacians A = Lᵀ D L of four graphs on k nodes, one in each lane, grounded at the last node.
///
/// W (k, k) has the weights of the edges (p, q), p < q. They are replaced by -L, and the diagonal by 1 / D (zero for a node
/// without edges). Nodes are eliminated one after another, and their neighbors are joined instead.
void factor_grounded(Four* W, Index k) {
    for (Index p = 0; p < k - 1; ++p) {
        Four* row = W + p * k;
        Four total = row[k - 1], d;
        for (Index q = p + 1; q < k - 1; ++q) total.v += row[q].v;
        for (Index l = 0; l < LANES; ++l) d.v[l] = total.v[l] > NO_PIVOT ? 1 / total.v[l] : 0.0;
        for (Index i = p + 1; i < k; ++i) {
            const Four share = {row[i].v * d.v};
            for (Index j = i + 1; j < k; ++j) W[i * k + j].v += share.v * row[j].v;
            row[i] = share;
        }
        row[p] = d;
    }
}

/// Replace b by A⁻¹ b for factors of four Laplacians.
void solve_grounded(const Four* L, Four* b, Index k) {
    for (Index p = 0; p < k - 1; ++p)
        for (Index q = p + 1; q < k - 1; ++q) b[q].v += L[p * k + q].v * b[p].v;
    for (Index p = k - 2; p >= 0; --p) {
        b[p].v *= L[p * k + p].v;
        for (Index q = p + 1; q < k - 1; ++q) b[p].v += L[p * k + q].v * b[q].v;
    }
}

/// Add A⁻¹ to a table (k, k) for factors of four Laplacians; `spare` has room for k numbers.
void add_inverse(const Four* L, Four* table, Four* spare, Index k) {
    for (Index column = 0; column < k - 1; ++column) {
        std::fill(spare, spare + k, Four{});
        spare[column].v += 1.0;
        for (Index p = column; p < k - 1; ++p)
            for (Index q = p + 1; q < k - 1; ++q) spare[q].v += L[p * k + q].v * spare[p].v;
        for (Index p = k - 2; p >= column; --p) {
            spare[p].v *= L[p * k + p].v;
            for (Index q = p + 1; q < k - 1; ++q) spare[p].v += L[p * k + q].v * spare[q].v;
            table[column * k + p].v += spare[p].v;
        }
    }
}

/// The plans of all states, their duals, and the workspace of an iteration. One object solves one program after another.
///
/// A *block* is four edges of one state, a *group* is four states. Arrays over cells have k fours for every block.
class Plans {
  public:
    Plans(const Averages& averages, Watch& watch)
        : all_(averages), watch_(watch), k_(averages.k), last_(averages.k - 1), θ_(k_), pairs_(k_ * k_), sums_(2 * k_) {}

    /// Write barycenter b, and return its relative gap.
    double solve(Index b, double tolerance, Out<double> found) {
        std::copy_n(&all_.starts[b * k_], k_, found.data());
        if (k_ == 1 || !read(b)) return 0.0;  // every row is optimal
        return iterate(tolerance, found);
    }

  private:
    const Averages& all_;
    Watch& watch_;
    const Index k_, last_;
    Index n_states_ = 0;

    std::vector<Index> first_;                     // (groups * 4 + 1,) state x has the blocks first_[x] … first_[x + 1] - 1
    Fours plan_, slack_, inverse_, price_, push_;  // cells: Π, S, 1 / S, w U / max, right side of complementarity
    Fours mass_;                                   // (blocks,)
    Fours scale_;                                  // (blocks,) 1 / Σ_j plan / slack
    Fours lacking_, lacking_more_, f_;             // (blocks,) residual of an edge: constant, times centering; step of f
    Fours systems_;                                // (groups, k, k) factors of the Laplacians
    Fours right_, right_more_, g_;                 // (groups, k) right sides for fixed q: constant, times centering; step of g
    Fours θ_, pairs_, sums_;                      // workspace of a block, and of a group
    std::vector<double> q_, z_, dq_, dz_, v_, v_more_, M_;

    Index n_groups() const { return (n_states_ + LANES - 1) / LANES; }

    /// Read the rows and costs of barycenter b, without negligible edges; return whether anything costs.
    bool read(Index b) {
        n_states_ = all_.first[b + 1] - all_.first[b];
        first_.assign(1, 0), mass_.clear(), price_.clear();
        double top = 0.0;
        for (Index n = all_.first[b]; n < all_.first[b + 1]; ++n) {
            const View<double> p = all_.rows.probabilities_of(all_.states[n]);
            const View<Index> states = all_.rows.states_of(all_.states[n]);
            double whole = 0.0, kept = 0.0;
            for (const double mass : p) whole += mass;
            Index edges = 0, heavy = 0;
            for (Index e = 0; e < Index(p.size()); ++e)
                if (p[e] > NEGLIGIBLE * whole) kept += p[e], ++edges, heavy = e;
            for (Index e = 0, place = 0; e <= heavy; ++e) {
                if (!(p[e] > NEGLIGIBLE * whole)) continue;
                const Index parts = e == heavy ? LANES * ((edges + LANES - 1) / LANES) - edges + 1 : 1;
                const double* costs = &all_.costs[states[e] * k_];
                for (Index part = 0; part < parts; ++part)
                    top = std::max(top, add_edge(place++, p[e] / kept / double(parts), all_.weights[n], costs));
            }
            first_.push_back(Index(mass_.size()));
        }
        first_.resize(n_groups() * LANES + 1, Index(mass_.size()));
        for (Four& price : price_) price.v /= top;
        watch_.spend(8 * Index(price_.size()));
        return top > 0.0;
    }

    /// Add an edge with its mass and costs; returns the largest cost above the least one.
    double add_edge(Index place, double mass, double weight, const double* costs) {
        const Index lane = place % LANES;
        if (lane == 0) mass_.emplace_back(), price_.resize(price_.size() + k_);
        mass_.back().v[lane] = mass;
        const double least = *std::min_element(costs, costs + k_), most = *std::max_element(costs, costs + k_);
        for (Index j = 0; j < k_; ++j) price_[price_.size() - k_ + j].v[lane] = weight * (costs[j] - least);
        return weight * (most - least);
    }

    /// The feasible point Π = P(·|x) q', with all products of plans and slacks near their average.
    void begin(View<double> start) {
        const Index blocks = Index(mass_.size()), cells = blocks * k_;
        for (Fours* array : {&plan_, &slack_, &inverse_}) array->resize(cells);
        push_.assign(cells, Four{});
        for (Fours* array : {&scale_, &lacking_, &lacking_more_}) array->resize(blocks);
        f_.assign(blocks, Four{});
        systems_.resize(n_groups() * k_ * k_), right_.resize(n_groups() * k_), right_more_.resize(n_groups() * k_);
        g_.assign(n_groups() * k_, Four{});
        q_.assign(start.begin(), start.end());
        Four cost = {};
        for (Index block = 0, c = 0; block < blocks; ++block)
            for (Index j = 0; j < k_; ++j, ++c) {
                plan_[c].v = mass_[block].v * q_[j];
                cost.v += plan_[c].v * price_[c].v;
            }
        const double centering = cost.sum() / double(cells * LANES + k_) * double(k_);
        for (Index block = 0, c = 0; block < blocks; ++block)
            for (Index j = 0; j < k_; ++j, ++c) slack_[c].v = price_[c].v + centering / mass_[block].v;
        z_.assign(k_, centering);
        for (auto* vector : {&dq_, &dz_, &v_, &v_more_}) vector->assign(k_, 0.0);
        M_.resize(k_ * k_);
    }

    double iterate(double tolerance, Out<double> found) {
        begin(found);
        double reached = INF;
        Lengths step;
        for (int iteration = 0; iteration < MAX_ITERATIONS; ++iteration) {
            const Totals now = move_and_factor(step);
            if (!(now.error <= FEASIBLE)) break;  // rounding errors have spoiled the last step
            std::copy(q_.begin(), q_.end(), found.begin());
            const double gap = now.gap + inner(q_, z_);
            if (iteration > 0) reached = gap / (now.cost + ZERO_COST);
            if (reached <= tolerance) break;
            for (Index j = 0; j < k_; ++j) M_[j * k_ + j] += z_[j] / q_[j];
            invert(M_, k_);
            const double centering = predict(gap);
            step = correct(centering);
            step.primal *= SHARE, step.dual *= SHARE;
            for (Index j = 0; j < k_; ++j) q_[j] += step.primal * dq_[j], z_[j] += step.dual * dz_[j];
        }
        return reached;
    }

    /// The step of q and of its reduced costs z for the right side r - v; the sum of q does not change.
    void step_of_row(const std::vector<double>& r) {
        double total = -1.0, ones = 0.0;
        for (Index j = 0; j < k_; ++j) {
            dq_[j] = 0.0;
            for (Index i = 0; i < k_; ++i) dq_[j] += M_[j * k_ + i] * (r[i] / q_[i] - v_[i]), ones += M_[j * k_ + i];
            total += q_[j] + dq_[j];
        }
        for (Index j = 0; j < k_; ++j) {
            double row = 0.0;
            for (Index i = 0; i < k_; ++i) row += M_[j * k_ + i];
            dq_[j] -= total / ones * row;
            dz_[j] = (r[j] - z_[j] * dq_[j]) / q_[j];
        }
    }

    /// The predictor; returns the centering parameter, the gap per cell that the corrector aims at.
    double predict(double gap) {
        std::vector<double> r(k_);
        for (Index j = 0; j < k_; ++j) r[j] = -q_[j] * z_[j];
        step_of_row(r);
        const Prospect ahead = predict_plans();
        const double primal = std::min(1.0, 1 / std::max(1 - ahead.least, 1 / longest_step(q_, dq_, 1.0)));
        const double dual = std::min(1.0, 1 / std::max(ahead.most, 1 / longest_step(z_, dz_, 1.0)));
        double after = gap - inner(q_, z_) + primal * ahead.by_plans + dual * ahead.by_slacks + primal * dual * ahead.by_both;
        for (Index j = 0; j < k_; ++j) after += (q_[j] + primal * dq_[j]) * (z_[j] + dual * dz_[j]);
        const double share = std::max(after, 0.0) / gap;
        return share * share * share * gap / double(plan_.size() * LANES + k_);
    }

    /// The corrector; returns the longest steps that keep everything nonnegative.
    Lengths correct(double centering) {
        std::vector<double> r(k_);
        for (Index j = 0; j < k_; ++j) {
            r[j] = centering - q_[j] * z_[j] - dq_[j] * dz_[j];
            v_[j] = v_[j] + centering * v_more_[j];
        }
        step_of_row(r);
        return correct_plans(centering, {longest_step(q_, dq_, 1 / SHARE), longest_step(z_, dz_, 1 / SHARE)});
    }

    struct Totals {
        double gap = 0.0, cost = 0.0;
        double error = 0.0;  // average absolute error of the column sums
    };

    /// Take the last step; then invert the system of every state, write the sum of the inverses to the leading part of M,
    /// and reduce the predictor's equations to the steps d of the duals of the columns, whose sum is v.
    Totals move_and_factor(const Lengths& step) {
        Four gap = {}, cost = {};
        Totals found;
        Fours inverses(k_ * k_), sum(k_);
        for (Index group = 0; group < n_groups(); ++group) {
            Four* L = &systems_[group * k_ * k_];
            Four* t = &right_[group * k_];
            for (Index lane = 0; lane < LANES; ++lane) {
                const Index x = group * LANES + lane;
                factor_state(x, group, lane, step, gap, cost);
                for (Index j = 0; j < last_; ++j) t[j].v[lane] = x < n_states_ ? q_[j] - sums_[k_ + j].sum() : 0.0;
                for (Index j = 0; j < k_ && x < n_states_; ++j) found.error += std::abs(sums_[j].sum() - q_[j]);
                for (Index p = 0; p < k_; ++p)
                    for (Index q = p + 1; q < k_; ++q) L[p * k_ + q].v[lane] = pairs_[q * k_ + p].sum();
            }
            factor_grounded(L, k_);
            add_inverse(L, inverses.data(), sums_.data(), k_);
            add_solution(L, t, sum);
            watch_.spend(2 * LANES * k_ * k_ * k_);
        }
        for (Index j = 0; j < k_; ++j)
            for (Index i = 0; i < k_; ++i) M_[j * k_ + i] = j < last_ && i < last_ ? inverses[std::min(i, j) * k_ + std::max(i, j)].sum() : 0.0;
        for (Index j = 0; j < last_; ++j) v_[j] = sum[j].sum();
        found.gap = gap.sum(), found.cost = cost.sum(), found.error /= double(n_states_);
        return found;
    }

    /// Add A⁻¹ t of a group to a sum.
    void add_solution(const Four* L, const Four* t, Fours& sum) {
        std::copy(t, t + last_, sums_.begin());
        solve_grounded(L, sums_.data(), k_);
        for (Index j = 0; j < last_; ++j) sum[j].v += sums_[j].v;
    }

    /// Take the last step in state x, and sum its graph (`pairs_`), its columns, and their part of the predictor (`sums_`).
    void factor_state(Index x, Index group, Index lane, const Lengths& step, Four& gap, Four& cost) {
        std::fill(pairs_.begin(), pairs_.end(), Four{});
        std::fill(sums_.begin(), sums_.end(), Four{});
        const Four* g = &g_[group * k_];
        for (Index block = first_[x]; block < first_[x + 1]; ++block) {
            Four *plan = &plan_[block * k_], *slack = &slack_[block * k_], *inverse = &inverse_[block * k_];
            const Four *price = &price_[block * k_], *push = &push_[block * k_];
            const Four f = f_[block];
            Four total = {};
            for (Index j = 0; j < k_; ++j) {
                const Four::Vector y = f.v + g[j].v[lane];
                plan[j].v += step.primal * (push[j].v + plan[j].v * inverse[j].v * y);
                slack[j].v -= step.dual * y;
                inverse[j].v = 1.0 / slack[j].v;
                gap.v += plan[j].v * slack[j].v;
                cost.v += plan[j].v * price[j].v;
                θ_[j].v = plan[j].v * inverse[j].v;
                total.v += θ_[j].v;
                sums_[j].v += plan[j].v;
            }
            scale_[block].v = 1.0 / total.v;
            for (Index j = 0; j < k_; ++j) {
                const Four::Vector share = θ_[j].v * scale_[block].v;
                sums_[k_ + j].v += share * mass_[block].v;
                for (Index i = 0; i < j; ++i) pairs_[j * k_ + i].v += share * θ_[i].v;
            }
        }
        watch_.spend((first_[x + 1] - first_[x]) * LANES * k_ * (8 + k_ / 2));
    }

    /// What the predictor's step promises.
    struct Prospect {
        double least = 0.0, most = 0.0;                           // of u = (df + dg) / S
        double by_plans = 0.0, by_slacks = 0.0, by_both = 0.0;  // changes of the gap, for steps of length one
    };

    /// g = A⁻¹ (t + dq) for a group.
    void step_of_duals(Index group) {
        Four* g = &g_[group * k_];
        for (Index j = 0; j < last_; ++j) g[j].v = right_[group * k_ + j].v + dq_[j];
        solve_grounded(&systems_[group * k_ * k_], g, k_);
    }

    /// Compute the predictor's steps for the step of q, and from them the right sides of the corrector.
    Prospect predict_plans() {
        Four least = {}, most = {};
        Four by_plans = {}, by_slacks = {}, by_both = {};
        Fours sum(k_), sum_more(k_);
        for (Index group = 0; group < n_groups(); ++group) {
            step_of_duals(group);
            Four *t = &right_[group * k_], *more = &right_more_[group * k_];
            for (Index lane = 0; lane < LANES; ++lane) {
                const Index x = group * LANES + lane;
                predict_state(x, group, lane, least, most, by_plans, by_slacks, by_both);
                for (Index j = 0; j < last_; ++j) {
                    t[j].v[lane] = (x < n_states_ ? q_[j] : 0.0) - sums_[j].sum();
                    more[j].v[lane] = -sums_[k_ + j].sum();
                }
            }
            const Four* L = &systems_[group * k_ * k_];
            add_solution(L, t, sum);
            add_solution(L, more, sum_more);
        }
        for (Index j = 0; j < last_; ++j) v_[j] = sum[j].sum(), v_more_[j] = sum_more[j].sum();
        Prospect found{0.0, 0.0, by_plans.sum(), by_slacks.sum(), by_both.sum()};
        for (Index l = 0; l < LANES; ++l) {
            found.least = std::min(found.least, double(least.v[l]));
            found.most = std::max(found.most, double(most.v[l]));
        }
        return found;
    }

    void predict_state(
        Index x, Index group, Index lane, Four& least, Four& most, Four& by_plans, Four& by_slacks, Four& by_both
    ) {
        std::fill(sums_.begin(), sums_.end(), Four{});
        const Four* g = &g_[group * k_];
        for (Index block = first_[x]; block < first_[x + 1]; ++block) {
            const Four *plan = &plan_[block * k_], *slack = &slack_[block * k_], *inverse = &inverse_[block * k_];
            Four* push = &push_[block * k_];
            Four f = mass_[block], lacking = f, more = {};
            for (Index j = 0; j < k_; ++j) {
                θ_[j].v = plan[j].v * inverse[j].v;
                f.v -= θ_[j].v * g[j].v[lane];
            }
            f.v *= scale_[block].v;
            for (Index j = 0; j < k_; ++j) {
                const Four::Vector y = f.v + g[j].v[lane], u = inverse[j].v * y, d_plan = plan[j].v * (u - 1.0);
                least.v = u < least.v ? u : least.v;
                most.v = u > most.v ? u : most.v;
                by_plans.v += d_plan * slack[j].v;
                by_slacks.v -= plan[j].v * y;
                by_both.v -= d_plan * y;
                const Four::Vector second = d_plan * u;
                push[j].v = second - plan[j].v;
                lacking.v -= second;
                sums_[j].v += second;
                more.v -= inverse[j].v;
            }
            lacking_[block] = lacking, lacking_more_[block] = more;
            lacking.v *= scale_[block].v, more.v *= scale_[block].v;
            for (Index j = 0; j < k_; ++j) {
                sums_[j].v += θ_[j].v * lacking.v;
                sums_[k_ + j].v += inverse[j].v + θ_[j].v * more.v;
            }
        }
        watch_.spend((first_[x + 1] - first_[x]) * LANES * k_ * 8);
    }

    /// Compute the corrector's steps for the step of q; returns the longest ones that keep plans and slacks nonnegative.
    Lengths correct_plans(double centering, Lengths step) {
        for (Index group = 0; group < n_groups(); ++group) {
            for (Index j = 0; j < last_; ++j) right_[group * k_ + j].v += centering * right_more_[group * k_ + j].v;
            step_of_duals(group);
            for (Index lane = 0; lane < LANES; ++lane) correct_state(group * LANES + lane, group, lane, centering, step);
        }
        return step;
    }

    void correct_state(Index x, Index group, Index lane, double centering, Lengths& step) {
        const Four* g = &g_[group * k_];
        for (Index block = first_[x]; block < first_[x + 1]; ++block) {
            const Four *plan = &plan_[block * k_], *slack = &slack_[block * k_], *inverse = &inverse_[block * k_];
            Four* push = &push_[block * k_];
            Four f;
            f.v = lacking_[block].v + centering * lacking_more_[block].v;
            for (Index j = 0; j < k_; ++j) {
                θ_[j].v = plan[j].v * inverse[j].v;
                f.v -= θ_[j].v * g[j].v[lane];
            }
            f.v *= scale_[block].v;
            f_[block] = f;
            for (Index j = 0; j < k_; ++j) {
                const Four::Vector y = f.v + g[j].v[lane];
                push[j].v += centering * inverse[j].v;
                const Four::Vector d_plan = push[j].v + θ_[j].v * y;
                const auto outside = (plan[j].v + step.primal * d_plan < 0.0) | (slack[j].v - step.dual * y < 0.0);
                if (outside[0] | outside[1] | outside[2] | outside[3]) shorten(step, plan[j], d_plan, slack[j], y);
            }
        }
        watch_.spend((first_[x + 1] - first_[x]) * LANES * k_ * 8);
    }

    static void shorten(Lengths& step, const Four& plan, const Four::Vector& d_plan, const Four& slack, const Four::Vector& y) {
        for (Index l = 0; l < LANES; ++l) {
            if (plan.v[l] + step.primal * d_plan[l] < 0) step.primal = -plan.v[l] / d_plan[l];
            if (slack.v[l] - step.dual * y[l] < 0) step.dual = slack.v[l] / y[l];
        }
    }
};

/// About how many visits of a number one iteration takes for all barycenters.
double work_of(const Averages& averages) {
    double edges = 0.0;
    for (const Index x : averages.states) edges += double(averages.rows.length(x));
    return double(averages.k) * double(averages.k) * (edges + double(averages.k) * double(averages.states.size()));
}

}  // namespace

Barycenters barycenters(const Averages& averages, double tolerance, Team& team) {
    Barycenters found{std::vector<double>(averages.size() * averages.k), std::vector<double>(averages.size())};
    split(team, averages.size(), 20 * work_of(averages), [&](Index lo, Index hi, Watch& watch) {
        Plans plans(averages, watch);
        for (Index b = lo; b < hi; ++b)
            found.gaps[b] = plans.solve(b, tolerance, Out<double>(found.rows).subspan(b * averages.k, averages.k));
    });
    return found;
}

}  // namespace engine
