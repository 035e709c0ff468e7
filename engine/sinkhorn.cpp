#include "sinkhorn.hpp"

#include <numeric>

#include "exponential.hpp"
#include "successors.hpp"

namespace engine {
namespace {

/// Scalings beyond this are absorbed into the potentials.
constexpr double LARGE = 1e80;

/// Exponentials of smaller numbers are set to zero, and those of larger ones to e^LARGEST.
constexpr double VANISHES = -600.0, LARGEST = 300.0;

/// Newton: longest first step, lower limit of pivots, maximum number of steps.
constexpr double REACH = 4.0, RIDGE = 1e-14;
constexpr int STEPS = 60;

/// Cost of an exponential or a logarithm, in visits of a number in memory.
constexpr double FUNCTION = 2.0;

/// Working memory for the pairs of one thread.
struct Scratch {
    std::vector<double> costs, other_costs, K;
    std::vector<double> u, w, row, col, top;

    Scratch(Index longest_x, Index longest_y)
        : costs(longest_x * longest_y), other_costs(longest_x * longest_y), K(longest_x * longest_y), u(longest_x), w(longest_y),
          row(std::max(longest_x, longest_y)), col(std::max(longest_x, longest_y)), top(std::max(longest_x, longest_y)) {}

    explicit Scratch(const Pairs& pairs) : Scratch(pairs.x.longest(), pairs.y.longest()) {}
};

/// The laws of a pair, and its potentials.
struct Bound : Pair {
    double *f, *g;

    Bound(Index k, const Pairs& pairs, Potentials potentials)
        : Pair(k, pairs), f(potentials.F.data() + at_f), g(potentials.G.data() + at_g) {}
};

Costs costs_of_pair(const Pair& pair, const Pairs& pairs, View<double> W, std::vector<double>& memory) {
    return costs_of(W, pairs.n_y, pair.rows, pair.cols, memory.data());
}

/// Call body(k, scratch, watch) for all pairs with all threads; `units` is the work per cell of a pair.
template <class Body> void each_pair(Team& team, const Pairs& pairs, double units, Body&& body) {
    split(team, pairs.size(), units * pairs.cells(), [&](Index from, Index to, Watch& watch) {
        Scratch scratch(pairs);
        for (Index k = from; k < to; ++k) body(k, scratch, watch);
    });
}

/// Call part(from, to, table, watch) for pieces of all pairs, each with its own table, and add the tables in order to
/// `total`. The pieces do not depend on the number of threads.
template <class Part> void add_tables(Team& team, Index size, double work, Out<double> total, Part&& part) {
    const Index pieces = even_pieces(size, work);
    std::vector<std::vector<double>> tables(pieces);
    split(team, pieces, work, [&](Index from, Index to, Watch& watch) {
        for (Index piece = from; piece < to; ++piece) {
            tables[piece].resize(total.size());
            part(size * piece / pieces, size * (piece + 1) / pieces, tables[piece].data(), watch);
        }
    });
    for (const std::vector<double>& table : tables)
        for (std::size_t z = 0; z < total.size(); ++z) total[z] += table[z];
}

// --- soft minima -------------------------------------------------------------------------------------------------

/// f_i = -1/β log Σ_j q_j exp(β (g_j - C_ij)). K gets the terms of the sums, relative to the largest of each row, and
/// `mass` (a) their sums; `top` (a) is scratch.
void soft_rows(const Costs& C, const double* log_q, const double* g, double beta, double* f, double* K, double* mass, double* top) {
    const Index a = C.a, b = C.b;
    for (Index i = 0; i < a; ++i) {
        const double* c = C.row(i);
        double* line = K + i * b;
        for (Index j = 0; j < b; ++j) line[j] = log_q[j] + beta * (g[j] - c[j]);
        top[i] = range_of(line, b).second;
        for (Index j = 0; j < b; ++j) line[j] -= top[i];
    }
    for (Index z = 0; z < a * b; ++z) K[z] = exp_or_zero(K[z], VANISHES);
    for (Index i = 0; i < a; ++i) mass[i] = sum_of(b, [line = K + i * b](Index j) { return line[j]; });
    for (Index i = 0; i < a; ++i) f[i] = -(top[i] + log_of(mass[i])) / beta;
}

/// g_j = -1/β log Σ_i p_i exp(β (f_i - C_ij)); K, `mass` (b) and `top` (b) are scratch.
void soft_columns(const Costs& C, const double* log_p, const double* f, double beta, double* g, double* K, double* mass, double* top) {
    const Index a = C.a, b = C.b;
    std::fill(top, top + b, -INF);
    for (Index i = 0; i < a; ++i) {
        const double *c = C.row(i), weight = log_p[i], own = f[i];
        double* line = K + i * b;
        for (Index j = 0; j < b; ++j) {
            line[j] = weight + beta * (own - c[j]);
            top[j] = line[j] > top[j] ? line[j] : top[j];
        }
    }
    std::fill(mass, mass + b, 0.0);
    for (Index i = 0; i < a; ++i)
        for (Index j = 0; j < b; ++j) mass[j] += exp_or_zero(K[i * b + j] - top[j], VANISHES);
    for (Index j = 0; j < b; ++j) g[j] = -(top[j] + log_of(mass[j])) / beta;
}

/// Give column j a half-step of its own.
void soft_column(const Costs& C, Index j, const Bound& pair, double beta, Scratch& s) {
    for (Index i = 0; i < C.a; ++i) s.other_costs[i] = C.row(i)[j];
    soft_rows({s.other_costs.data(), C.a, 1, C.a}, pair.log_p.data(), pair.f, beta, &pair.g[j], s.row.data(), s.col.data(), s.top.data());
}

/// Set f = softmin(C - g) and K to the plan, with exact rows; empty columns get a half-step of their own.
void absorb(const Costs& C, const Bound& pair, double beta, Scratch& s) {
    const Index a = C.a, b = C.b;
    double* K = s.K.data();
    for (int attempt = 0; attempt < 3; ++attempt) {
        soft_rows(C, pair.log_q.data(), pair.g, beta, pair.f, K, s.row.data(), s.top.data());
        for (Index i = 0; i < a; ++i) {
            const double share = pair.p[i] / s.row[i];
            for (Index j = 0; j < b; ++j) K[i * b + j] *= share;
        }
        column_sums(K, a, b, s.w.data());
        bool found = false;
        for (Index j = 0; j < b; ++j)
            if (s.w[j] < TINY * pair.q[j]) soft_column(C, j, pair, beta, s), found = true;
        if (!found) break;
    }
}

// --- Sinkhorn ----------------------------------------------------------------------------------------------------

/// The largest of v and 1/v.
double farthest(const double* v, Index n) {
    const auto [least, most] = range_of(v, n);
    return std::max(most, 1.0 / least);
}

/// A half-step with over-relaxation of one side, whose scalings times `sums` are to be p; returns the previous error.
double relax(View<double> p, const double* sums, double omega, double* scaling) {
    return sum_of_lanes(Index(p.size()), [&](Index i, auto of) {
        const auto own = of.load(scaling + i), have = own * of.load(sums + i), want = of.load(p.data() + i), off = have - want;
        of.store(scaling + i, own * relaxed_inverse(have / want, omega));
        return off < 0.0 ? -off : off;
    });
}

/// One pair in Sinkhorn's iteration.
class Scaling {
  public:
    Scaling(const Costs& C, const Bound& pair, double beta, Scratch& scratch) : C_(C), pair_(pair), beta_(beta), s_(scratch) {}

    /// Iterate until the marginals are accurate, updating ω and the error; returns the number of iterations.
    Index run(Limit limit, double& omega, double& error, Watch& watch) {
        Index done = 0;
        double before = INF;
        while (true) {
            absorb(C_, pair_, beta_, s_);
            std::fill_n(s_.u.data(), C_.a, 1.0);
            std::fill_n(s_.w.data(), C_.b, 1.0);
            for (double far = 1.0; far < LARGE;) {
                error = columns(done < limit.iterations ? omega : 1.0);
                if (error <= limit.error || done == limit.iterations) break;
                ++done;
                rows(omega);
                far = std::max(farthest(s_.u.data(), C_.a), farthest(s_.w.data(), C_.b));
                omega = relaxation(done, omega, error, before);
                if (done % EVERY == 0) before = error;
                watch.spend(C_.a * C_.b / 2);
            }
            rows(1.0);
            for (Index i = 0; i < C_.a; ++i) pair_.f[i] += log_of(s_.u[i]) / beta_;
            for (Index j = 0; j < C_.b; ++j) pair_.g[j] += log_of(s_.w[j]) / beta_;
            watch.spend(Index(FUNCTION) * C_.a * C_.b);
            if (error <= limit.error || done == limit.iterations) return done;
        }
    }

  private:
    double columns(double omega) {
        weighted_column_sums({s_.K.data(), C_.b, C_.a}, s_.u.data(), C_.b, s_.col.data());
        return relax(pair_.q, s_.col.data(), omega, s_.w.data());
    }

    void rows(double omega) {
        for (Index i = 0; i < C_.a; ++i) s_.row[i] = dot(&s_.K[i * C_.b], s_.w.data(), C_.b);
        relax(pair_.p, s_.row.data(), omega, s_.u.data());
    }

    const Costs& C_;
    const Bound& pair_;
    double beta_;
    Scratch& s_;
};

// --- Newton ------------------------------------------------------------------------------------------------------
//
// For high accuracy at low temperature, where Sinkhorn is too slow. With f eliminated by an exact half-step, the dual of
// one pair is a concave function of g alone,
//
//     φ(g) = <p, softmin(C - g)> + <q, g>,     ∇φ = q - t,     ∇²φ = -β (diag(t) - Kᵀ diag(1/p) K),
//
// where K is the plan and t its column sums. Sinkhorn is the fixed step g += log(q/t)/β; if little mass moves between two
// groups of states (a nearly degenerate transport), its rate is one minus that mass. Newton's method is not affected: the
// matrix, in the symmetric form I - N with N = t^{-1/2} Kᵀ p^{-1} K t^{-1/2}, is a graph Laplacian, singular only for
// constants, which do not matter for g. Steps are limited to REACH in the exponent, or twice the last step, and shortened
// until φ does not decrease. A step costs a b²/2 + b³/6 multiplications for (a, b) successors.

class Newton {
  public:
    Newton(Index longest_x, Index longest_y)
        : root_(longest_y), v_(longest_y), old_(longest_y), t_(longest_y), coefficients_(longest_y), sums_(longest_y),
          A_(longest_x * padded(longest_y)), H_(longest_y * padded(longest_y)) {}

    /// Improve one pair and return the remaining error; φ decreases at most by rounding.
    double run(const Costs& C, const Bound& pair, double beta, double target, Scratch& scratch, Watch& watch) {
        const Index b = C.b;
        double reach = REACH, best = INF, size = 0.0, length = 0.0, before = -INF, error = INF;
        int idle = 0;
        for (int step = 0; step <= STEPS; ++step) {
            double value;
            std::tie(value, error) = dual_value(C, pair, beta, scratch);
            if (step == STEPS) break;
            const double noise = 1e-15 * (std::abs(value) + 1 / beta);
            if (value >= before - noise) {
                reach = std::max(REACH, 2 * length * size);  // longer and longer steps where φ is nearly linear
                idle = error < 0.9 * best || value > before + 10 * noise ? 0 : idle + 1;
                best = std::min(best, error);
                if (error <= target || idle == 3) break;
                before = value, size = direction(pair, scratch.K.data());
                length = std::min(1.0, reach / size);
                std::copy_n(pair.g, b, old_.data());
            } else if (length * size > 1e-12) {
                length *= 0.25;
            } else {  // no ascent, or not a number: go back and stop
                length = 0.0, before = -INF, idle = 2;
            }
            for (Index j = 0; j < b; ++j) pair.g[j] = length > 0.0 ? old_[j] + length * v_[j] / beta : old_[j];
            watch.spend(Index(FUNCTION) * C.a * b + C.a * b * b / 8);
        }
        return error;
    }

  private:
    /// Compute f, the plan and its column sums t from g; returns φ and the error.
    std::pair<double, double> dual_value(const Costs& C, const Bound& pair, double beta, Scratch& scratch) {
        absorb(C, pair, beta, scratch);
        column_sums(scratch.K.data(), C.a, C.b, t_.data());
        const double value = dot(pair.p.data(), pair.f, C.a) + dot(pair.q.data(), pair.g, C.b);
        return {value, sum_of(C.b, [&](Index j) { return std::abs(t_[j] - pair.q[j]); })};
    }

    /// Write Newton's step for β g, with mean zero, to v_; returns its length.
    double direction(const Bound& pair, const double* K) {
        const Index b = pair.b();
        for (Index j = 0; j < b; ++j) {
            root_[j] = std::sqrt(t_[j]);
            v_[j] = (pair.q[j] - t_[j]) / root_[j];
        }
        make_matrix(pair, K);
        factorize(b);
        solve(b);
        for (Index j = 0; j < b; ++j) v_[j] /= root_[j];
        const double mean = dot(pair.q.data(), v_.data(), b);
        double size = 0.0;
        for (Index j = 0; j < b; ++j) {
            v_[j] -= mean;
            size = !(std::abs(v_[j]) <= size) ? std::abs(v_[j]) : size;
        }
        return size;
    }

    /// Write the upper triangle of I - N + RIDGE, as N = AᵀA with A = p^{-1/2} K t^{-1/2}.
    void make_matrix(const Bound& pair, const double* K) {
        const Index a = pair.a(), b = pair.b(), stride = padded(b);
        for (Index j = 0; j < b; ++j) sums_[j] = 1.0 / root_[j];
        for (Index i = 0; i < a; ++i) {
            const double weight = 1.0 / std::sqrt(pair.p[i]);
            for (Index j = 0; j < b; ++j) A_[i * stride + j] = K[i * b + j] * weight * sums_[j];
        }
        if (panels_.rows() != a || panels_.columns() != b) panels_ = Panels(a, b);
        panels_.fill([&](Index i, Index j) { return A_[i * stride + j]; });
        multiply_upper({A_.data(), 1, stride}, panels_, H_.data(), stride);
        for (Index j = 0; j < b; ++j) {
            for (Index m = j; m < b; ++m) H_[j * stride + m] = -H_[j * stride + m];
            H_[j * stride + j] += 1.0 + RIDGE;
        }
    }

    /// Replace the upper triangle of H by that of U with UᵀU = H; pivots are kept positive.
    void factorize(Index b) {
        const Index stride = padded(b);
        for (Index j = 0; j < b; ++j) {
            double* line = &H_[j * stride];
            for (Index k = 0; k < j; ++k) coefficients_[k] = H_[k * stride + j];
            weighted_column_sums({&H_[j], stride, j}, coefficients_.data(), b - j, sums_.data());
            for (Index m = j; m < b; ++m) line[m] -= sums_[m - j];
            const double pivot = std::sqrt(line[j] > RIDGE ? line[j] : RIDGE), inverse = 1.0 / pivot;
            line[j] = pivot;
            for (Index m = j + 1; m < b; ++m) line[m] *= inverse;
        }
    }

    /// v_ = (UᵀU)⁻¹ v_
    void solve(Index b) {
        const Index stride = padded(b);
        for (Index j = 0; j < b; ++j) {
            const double* line = &H_[j * stride];
            const double value = v_[j] /= line[j];
            for (Index m = j + 1; m < b; ++m) v_[m] -= line[m] * value;
        }
        for (Index j = b - 1; j >= 0; --j) {
            const double* line = &H_[j * stride];
            v_[j] = (v_[j] - dot(line + j + 1, v_.data() + j + 1, b - j - 1)) / line[j];
        }
    }

    std::vector<double> root_, v_, old_;  // sqrt(t), direction, g before the step
    std::vector<double> t_;  // column sums of the plan
    std::vector<double> coefficients_, sums_;
    std::vector<double> A_, H_;  // rows of padded(b) numbers
    Panels panels_;
};

// --- plans -------------------------------------------------------------------------------------------------------

/// Compute the plan (a × b) of a pair from its current potentials in scratch.K, rounded or not.
void make_plan(const Costs& C, const Bound& pair, double beta, bool rounded, Scratch& s) {
    double* K = s.K.data();
    for (Index i = 0; i < C.a; ++i) {
        const double *c = C.row(i), own = pair.f[i];
        const double *log_q = pair.log_q.data(), *g = pair.g;
        for (Index j = 0; j < C.b; ++j) {  // one marginal is normalized, so that no entry is much larger than one
            const double exponent = log_q[j] + beta * (own + g[j] - c[j]);
            K[i * C.b + j] = exponent < LARGEST ? exponent : LARGEST;
        }
    }
    for (Index z = 0; z < C.a * C.b; ++z) K[z] = exp_or_zero(K[z], VANISHES);
    for (Index i = 0; i < C.a; ++i)
        for (Index j = 0; j < C.b; ++j) K[i * C.b + j] *= pair.p[i];
    if (rounded) round_plan(K, pair.p, pair.q, s.row.data(), s.col.data());
}

/// KL(K ‖ p⊗q) of a plan, with logarithms, because products of small probabilities may underflow.
double divergence(const double* K, const Pair& pair, double* terms) {
    double total = 0.0;
    for (Index i = 0; i < pair.a(); ++i) {
        const double *line = K + i * pair.b(), *log_q = pair.log_q.data(), log_p = pair.log_p[i];
        for (Index j = 0; j < pair.b(); ++j) {
            const double term = line[j] * (log_of(line[j]) - log_p - log_q[j]);
            terms[j] = line[j] > 0.0 ? term : 0.0;
        }
        total += sum_of(pair.b(), [=](Index j) { return terms[j]; });
    }
    return std::max(total, 0.0);
}

/// <K, V> of a plan on the successors of its pair.
double mean_of(const double* K, const Pair& pair, View<double> V, Index n_y) {
    const Index a = pair.a(), b = pair.b();
    if (b == n_y && a * b == Index(V.size())) return dot(K, V.data(), a * b);
    const Index* cols = pair.cols.data();
    double total = 0.0;
    for (Index i = 0; i < a; ++i) {
        const double *line = V.data() + pair.rows[i] * n_y, *own = K + i * b;
        total += sum_of(b, [=](Index j) { return own[j] * line[cols[j]]; });
    }
    return total;
}

/// Add a multiple of a plan to a table.
void spread(const double* K, const Pair& pair, double amount, double* table, Index n_y) {
    for (Index i = 0; i < pair.a(); ++i) {
        double* line = table + pair.rows[i] * n_y;
        const double* own = K + i * pair.b();
        if (pair.b() == n_y)
            for (Index j = 0; j < n_y; ++j) line[j] += amount * own[j];
        else
            for (Index j = 0; j < pair.b(); ++j) line[pair.cols[j]] += amount * own[j];
    }
}

// --- potentials --------------------------------------------------------------------------------------------------

/// Potentials f (a) and g (b) of a pair on its successors, by two transforms of its g; they are s.u and s.w.
void own_potentials(const Pair& pair, const Costs& C, const double* g, double epsilon, Scratch& s) {
    if (epsilon == 0.0) {
        transform_rows(C, g, s.u.data());
        transform_columns(C, s.u.data(), s.w.data());
    } else {
        soft_rows(C, pair.log_q.data(), g, 1 / epsilon, s.u.data(), s.K.data(), s.row.data(), s.top.data());
        soft_columns(C, pair.log_p.data(), s.u.data(), 1 / epsilon, s.w.data(), s.K.data(), s.col.data(), s.top.data());
    }
}

/// Transforms of the own potentials of a pair at all states.
class Everywhere {
  public:
    Everywhere(const Pairs& pairs, const Tempered& of)
        : pairs_(pairs), of_(of), all_(std::max(pairs.n_x, pairs.x.longest()), std::max(pairs.n_y, pairs.y.longest())),
          memory_(std::max(pairs.n_x * pairs.y.longest(), pairs.n_y * pairs.x.longest())) {}

    /// Write f (n_X) and g (n_Y) of a pair for the potentials s.u and s.w on its successors.
    void write(const Pair& pair, const Scratch& s, double* f, double* g) {
        const Costs of_f = costs_of(of_.U, pairs_.n_y, pairs_.all_x, pair.cols, memory_.data());
        if (of_.epsilon == 0.0) transform_rows(of_f, s.w.data(), f);
        else soft_rows(of_f, pair.log_q.data(), s.w.data(), 1 / of_.epsilon, f, all_.K.data(), all_.row.data(), all_.top.data());
        const Costs of_g = costs_of(of_.U, pairs_.n_y, pair.rows, pairs_.all_y, memory_.data());
        if (of_.epsilon == 0.0) transform_columns(of_g, s.u.data(), g);
        else soft_columns(of_g, pair.log_p.data(), s.u.data(), 1 / of_.epsilon, g, all_.K.data(), all_.col.data(), all_.top.data());
    }

  private:
    const Pairs& pairs_;
    const Tempered& of_;
    Scratch all_;
    std::vector<double> memory_;
};

void add(double weight, const double* values, Index n, double* sums) {
    for (Index j = 0; j < n; ++j) sums[j] += weight * values[j];
}

}  // namespace

// --- all pairs ---------------------------------------------------------------------------------------------------

Pairs::Pairs(const Rows& x_, const Rows& y_, Index n_x_, Index n_y_)
    : x(x_), y(y_), n_x(n_x_), n_y(n_y_), log_p(x_.probabilities.size()), log_q(y_.probabilities.size()), all_x(n_x_), all_y(n_y_) {
    for (std::size_t e = 0; e < log_p.size(); ++e) log_p[e] = log_of(x.probabilities[e]);
    for (std::size_t e = 0; e < log_q.size(); ++e) log_q[e] = log_of(y.probabilities[e]);
    std::iota(all_x.begin(), all_x.end(), Index(0));
    std::iota(all_y.begin(), all_y.end(), Index(0));
}

Pair::Pair(Index k, const Pairs& pairs) : x(k / pairs.y.size()), y(k % pairs.y.size()) {
    const Index i = pairs.x.first[x], j = pairs.y.first[y], n_a = pairs.x.length(x), n_b = pairs.y.length(y);
    rows = pairs.x.states_of(x), cols = pairs.y.states_of(y);
    p = pairs.x.probabilities_of(x), q = pairs.y.probabilities_of(y);
    log_p = View<double>(pairs.log_p).subspan(i, n_a), log_q = View<double>(pairs.log_q).subspan(j, n_b);
    at_f = pairs.y.size() * i + y * n_a, at_g = x * Index(pairs.y.states.size()) + j;
}

GibbsPlans::GibbsPlans(const Rows& x, const Rows& y, Index n_x, Index n_y, Potentials potentials)
    : pairs_(x, y, n_x, n_y), potentials_(potentials) {}

void GibbsPlans::set_kernel(View<double> W, double beta, bool share) {
    W_ = W, beta_ = beta;
    const FullRows laws{pairs_.x.probabilities, pairs_.y.probabilities, pairs_.y.size(), pairs_.n_x, pairs_.n_y};
    shared_ = share && pairs_.are_full() ? SharedKernel::of(laws, W, beta) : nullptr;
}

namespace {

/// Call run(block, unfit, watch) for blocks of pairs, and one(k, scratch, watch) for those that it reports. Without a
/// shared kernel, all pairs are computed one by one. `units` is the work per cell of a pair.
template <class Run, class One>
void each_block(Team& team, const Pairs& pairs, bool shared, double units, Run&& run, One&& one) {
    if (!shared) return each_pair(team, pairs, units, one);
    const Index size = pairs.size(), blocks = (size + SharedKernel::BLOCK - 1) / SharedKernel::BLOCK;
    split(team, blocks, units / 4 * pairs.cells(), [&](Index from, Index to, Watch& watch) {
        std::vector<Index> unfit;
        for (Index block = from; block < to; ++block)
            run(Block{block * SharedKernel::BLOCK, std::min((block + 1) * SharedKernel::BLOCK, size)}, unfit, watch);
        if (unfit.empty()) return;
        Scratch scratch(pairs);
        for (const Index k : unfit) one(k, scratch, watch);
    });
}

}  // namespace

Index GibbsPlans::scale(Team& team, Limit limit, Progress progress) {
    std::atomic<Index> total{0};
    const auto block = [&](Block pairs, std::vector<Index>& unfit, Watch& watch) {
        total += shared_->scale(pairs, potentials_, limit, progress, watch, unfit);
    };
    const auto one = [&](Index k, Scratch& scratch, Watch& watch) {
        const Bound pair(k, pairs_, potentials_);
        const Costs C = costs_of_pair(pair, pairs_, W_, scratch.costs);
        total += Scaling(C, pair, beta_, scratch).run(limit, progress.omega[k], progress.error[k], watch);
    };
    each_block(team, pairs_, shared_ != nullptr, double(limit.iterations), block, one);
    return total;
}

Index GibbsPlans::polish(Team& team, double target, Out<double> error) {
    std::vector<Index> listed;
    for (Index k = 0; k < pairs_.size(); ++k)
        if (error[k] > target) listed.push_back(k);
    const Index longest_x = pairs_.x.longest(), longest_y = pairs_.y.longest();
    const double steps = 4.0, work = steps * double(longest_x * longest_y) * (FUNCTION + double(longest_y) / 8);
    split(team, Index(listed.size()), work * double(listed.size()), [&](Index from, Index to, Watch& watch) {
        Scratch scratch(pairs_);
        Newton newton(longest_x, longest_y);
        for (Index at = from; at < to; ++at) {
            const Index k = listed[at];
            const Bound pair(k, pairs_, potentials_);
            const Costs C = costs_of_pair(pair, pairs_, W_, scratch.costs);
            error[k] = newton.run(C, pair, beta_, target, scratch, watch);
        }
    });
    return Index(listed.size());
}

void GibbsPlans::half_step(Team& team, bool columns, Out<double> out) const {
    const auto block = [&](Block pairs, std::vector<Index>& unfit, Watch& watch) {
        shared_->half_step(pairs, potentials_, columns, out, unfit);
        watch.spend(pairs.size() * pairs_.n_x * pairs_.n_y / 8);
    };
    const auto one = [&](Index k, Scratch& s, Watch& watch) {
        const Bound pair(k, pairs_, potentials_);
        const Costs C = costs_of_pair(pair, pairs_, W_, s.costs);
        if (columns) soft_columns(C, pair.log_p.data(), pair.f, beta_, &out[pair.at_g], s.K.data(), s.col.data(), s.top.data());
        else soft_rows(C, pair.log_q.data(), pair.g, beta_, &out[pair.at_f], s.K.data(), s.row.data(), s.top.data());
        watch.spend(Index(FUNCTION) * C.a * C.b);
    };
    each_block(team, pairs_, shared_ != nullptr, FUNCTION, block, one);
}

void GibbsPlans::means(Team& team, bool columns, View<double> potential, Out<double> out) const {
    split(team, pairs_.size(), double(potential.size()), [&](Index from, Index to, Watch& watch) {
        for (Index k = from; k < to; ++k) {
            const Pair pair(k, pairs_);
            const View<double> weights = columns ? pair.q : pair.p;
            out[k] = dot(weights.data(), potential.data() + (columns ? pair.at_g : pair.at_f), Index(weights.size()));
            watch.spend(Index(weights.size()));
        }
    });
}

void GibbsPlans::plan_costs(Team& team, const Tempered& of, bool rounded, Out<double> out) const {
    each_pair(team, pairs_, (of.epsilon > 0.0 ? 2 : 1) * FUNCTION, [&](Index k, Scratch& s, Watch& watch) {
        const Bound pair(k, pairs_, potentials_);
        make_plan(costs_of_pair(pair, pairs_, W_, s.costs), pair, beta_, rounded, s);
        out[k] = mean_of(s.K.data(), pair, of.U, pairs_.n_y);
        if (of.epsilon > 0.0) out[k] += of.epsilon * divergence(s.K.data(), pair, s.col.data());
        watch.spend(2 * Index(FUNCTION) * pair.a() * pair.b());
    });
}

double GibbsPlans::dual_bounds(Team& team, const Tempered& of, Out<double> out) const {
    std::vector<double> sizes(out.size());
    each_pair(team, pairs_, of.epsilon > 0.0 ? 2 * FUNCTION : 0.5, [&](Index k, Scratch& s, Watch& watch) {
        const Bound pair(k, pairs_, potentials_);
        own_potentials(pair, costs_of_pair(pair, pairs_, of.U, s.costs), pair.g, of.epsilon, s);
        out[k] = dot(pair.p.data(), s.u.data(), pair.a()) + dot(pair.q.data(), s.w.data(), pair.b());
        const auto [least_f, most_f] = range_of(s.u.data(), pair.a());
        const auto [least_g, most_g] = range_of(s.w.data(), pair.b());
        sizes[k] = std::max({most_f, -least_f, most_g, -least_g});
        watch.spend((of.epsilon > 0.0 ? 2 * Index(FUNCTION) : 1) * pair.a() * pair.b());
    });
    return range_of(sizes.data(), Index(sizes.size())).second;
}

void GibbsPlans::plan(Index k, bool rounded, Out<double> out) const {
    const Bound pair(k, pairs_, potentials_);
    Scratch scratch(pair.a(), pair.b());
    make_plan(costs_of_pair(pair, pairs_, W_, scratch.costs), pair, beta_, rounded, scratch);
    std::copy(scratch.K.begin(), scratch.K.end(), out.begin());
}

void GibbsPlans::potentials(Index k, const Tempered& of, Out<double> f, Out<double> g) const {
    const Bound pair(k, pairs_, potentials_);
    Scratch scratch(pair.a(), pair.b());
    own_potentials(pair, costs_of_pair(pair, pairs_, of.U, scratch.costs), pair.g, of.epsilon, scratch);
    Everywhere(pairs_, of).write(pair, scratch, f.data(), g.data());
}

void GibbsPlans::weighted_potentials(
    Team& team, const Tempered& of, View<double> m, bool everywhere, Out<double> by_x, Out<double> by_y
) const {
    const Index n_x = pairs_.n_x, n_y = pairs_.n_y, first_y = Index(by_x.size());
    const double successors = double(pairs_.x.states.size()) * double(pairs_.y.size()) + double(pairs_.y.states.size()) * double(pairs_.x.size());
    const double work = 2 * FUNCTION * (everywhere ? successors * double(n_x + n_y) : pairs_.cells());
    std::vector<double> total(by_x.size() + by_y.size());
    add_tables(team, pairs_.size(), work, Out<double>(total), [&](Index from, Index to, double* table, Watch& watch) {
        Scratch s(pairs_);
        Everywhere all(pairs_, of);
        std::vector<double> f(n_x), g(n_y);
        for (Index k = from; k < to; ++k) {
            if (!(m[k] > 0.0)) continue;
            const Bound pair(k, pairs_, potentials_);
            own_potentials(pair, costs_of_pair(pair, pairs_, of.U, s.costs), pair.g, of.epsilon, s);
            if (everywhere) {
                all.write(pair, s, f.data(), g.data());
                add(m[k], f.data(), n_x, table + pair.x * n_x);
                add(m[k], g.data(), n_y, table + first_y + pair.y * n_y);
                watch.spend(Index(FUNCTION) * (n_x * pair.b() + n_y * pair.a()));
            } else {
                add(m[k], s.u.data(), pair.a(), table + pairs_.x.first[pair.x]);
                add(m[k], s.w.data(), pair.b(), table + first_y + pairs_.y.first[pair.y]);
            }
            watch.spend(2 * Index(FUNCTION) * pair.a() * pair.b());
        }
    });
    std::copy_n(total.begin(), by_x.size(), by_x.begin());
    std::copy(total.begin() + first_y, total.end(), by_y.begin());
}

// --- the plans as a matrix ---------------------------------------------------------------------------------------

/// π_k = diag(u_k) K diag(w_k) + row_k ⊗ col_k.
class FactoredPlans : public PlanOperator {
  public:
    FactoredPlans(Team& team, const GibbsPlans& plans, bool rounded)
        : plans_(plans), kernel_(plans.shared_), x_stride_(padded(plans.pairs_.n_x)), y_stride_(padded(plans.pairs_.n_y)),
          u_(plans.pairs_.size() * x_stride_), w_(plans.pairs_.size() * y_stride_), row_(rounded ? u_.size() : 0), col_(rounded ? w_.size() : 0),
          masses_(blocks()) {
        each_block(team, 1.0, [&](Index number, Block block, Watch& watch) {
            const Index x = block.from * x_stride_, y = block.from * y_stride_;
            const SharedKernel::Factors into{&u_[x], &w_[y], rounded ? &row_[x] : nullptr, rounded ? &col_[y] : nullptr};
            masses_[number] = kernel_->factors(block, plans_.potentials_, rounded, into);
            watch.spend(block.size() * x_stride_ * y_stride_ / 2);
        });
    }

    bool fit() const { return range_of(masses_.data(), Index(masses_.size())).second < INF; }

    void apply(Team& team, View<double> V, Out<double> out) const override {
        const Index n_x = plans_.pairs_.n_x, n_y = plans_.pairs_.n_y;
        Panels main(n_y, n_x), correction(n_y, n_x);
        main.fill([&](Index j, Index i) { return kernel_->entry(i, j) * V[i * n_y + j]; });
        correction.fill([&](Index j, Index i) { return V[i * n_y + j]; });
        each_block(team, 0.25, [&](Index number, Block block, Watch& watch) {
            std::vector<double> sums(block.size() * x_stride_);
            multiply({&w_[block.from * y_stride_], y_stride_, 1}, block.size(), main, sums.data(), x_stride_);
            for (Index k = block.from; k < block.to; ++k) out[k] = dot(&u_[k * x_stride_], &sums[(k - block.from) * x_stride_], n_x);
            if (masses_[number] > 0.0) {
                multiply({&col_[block.from * y_stride_], y_stride_, 1}, block.size(), correction, sums.data(), x_stride_);
                for (Index k = block.from; k < block.to; ++k) out[k] += dot(&row_[k * x_stride_], &sums[(k - block.from) * x_stride_], n_x);
            }
            watch.spend(block.size() * n_x * n_y / 4);
        });
    }

    void push(Team& team, View<double> m, Out<double> out) const override {
        const Index n_x = plans_.pairs_.n_x, n_y = plans_.pairs_.n_y, half = n_x * y_stride_;
        std::vector<double> total(2 * half);
        add_tables(team, blocks(), 0.25 * plans_.pairs_.cells(), Out<double>(total), [&](Index from, Index to, double* table, Watch& watch) {
            std::vector<double> weighted(SharedKernel::BLOCK * x_stride_);
            const auto add_products = [&](Block block, const std::vector<double>& left, const std::vector<double>& right, double* sums) {
                for (Index r = 0; r < block.size(); ++r)
                    for (Index i = 0; i < n_x; ++i) weighted[r * x_stride_ + i] = m[block.from + r] * left[(block.from + r) * x_stride_ + i];
                Panels panels(block.size(), n_y);
                panels.fill([&](Index r, Index j) { return right[(block.from + r) * y_stride_ + j]; });
                multiply({weighted.data(), 1, x_stride_}, n_x, panels, sums, y_stride_, true);
            };
            for (Index number = from; number < to; ++number) {
                const Block block = block_of(number);
                add_products(block, u_, w_, table);
                if (masses_[number] > 0.0) add_products(block, row_, col_, table + half);
                watch.spend(block.size() * n_x * n_y / 4);
            }
        });
        for (Index i = 0; i < n_x; ++i)
            for (Index j = 0; j < n_y; ++j)
                out[i * n_y + j] = kernel_->entry(i, j) * total[i * y_stride_ + j] + total[half + i * y_stride_ + j];
    }

  private:
    Index blocks() const { return (plans_.pairs_.size() + SharedKernel::BLOCK - 1) / SharedKernel::BLOCK; }
    Block block_of(Index number) const {
        return {number * SharedKernel::BLOCK, std::min((number + 1) * SharedKernel::BLOCK, plans_.pairs_.size())};
    }

    /// Call body(number, block, watch) for all blocks; `units` is the work per cell of a pair.
    template <class Body> void each_block(Team& team, double units, Body&& body) const {
        split(team, blocks(), units * plans_.pairs_.cells(), [&](Index from, Index to, Watch& watch) {
            for (Index number = from; number < to; ++number) body(number, block_of(number), watch);
        });
    }

    const GibbsPlans& plans_;
    std::shared_ptr<const SharedKernel> kernel_;
    Index x_stride_, y_stride_;
    std::vector<double> u_, w_, row_, col_;  // the last two are empty without rounding
    std::vector<double> masses_;  // of the largest rank-one term in every block
};

/// All entries, one pair after the other, each (a × b) by rows.
class StoredPlans : public PlanOperator {
  public:
    StoredPlans(Team& team, const GibbsPlans& plans, bool rounded) : plans_(plans), entries_(std::size_t(plans.pairs_.cells())) {
        each_pair(team, plans.pairs_, FUNCTION, [&](Index k, Scratch& s, Watch& watch) {
            const Bound pair(k, plans.pairs_, plans.potentials_);
            make_plan(costs_of_pair(pair, plans.pairs_, plans.W_, s.costs), pair, plans.beta_, rounded, s);
            std::copy_n(s.K.data(), pair.a() * pair.b(), entries_.data() + place(pair));
            watch.spend(Index(FUNCTION) * pair.a() * pair.b());
        });
    }

    void apply(Team& team, View<double> V, Out<double> out) const override {
        const Pairs& pairs = plans_.pairs_;
        split(team, pairs.size(), pairs.cells(), [&](Index from, Index to, Watch& watch) {
            for (Index k = from; k < to; ++k) {
                const Pair pair(k, pairs);
                out[k] = mean_of(entries_.data() + place(pair), pair, V, pairs.n_y);
                watch.spend(pair.a() * pair.b());
            }
        });
    }

    void push(Team& team, View<double> m, Out<double> out) const override {
        const Pairs& pairs = plans_.pairs_;
        std::fill(out.begin(), out.end(), 0.0);
        add_tables(team, pairs.size(), pairs.cells(), out, [&](Index from, Index to, double* table, Watch& watch) {
            for (Index k = from; k < to; ++k) {
                if (m[k] == 0.0) continue;
                const Pair pair(k, pairs);
                spread(entries_.data() + place(pair), pair, m[k], table, pairs.n_y);
                watch.spend(pair.a() * pair.b());
            }
        });
    }

  private:
    /// The first entry of a pair.
    Index place(const Pair& pair) const {
        const Pairs& pairs = plans_.pairs_;
        return pairs.x.first[pair.x] * Index(pairs.y.states.size()) + pair.a() * pairs.y.first[pair.y];
    }

    const GibbsPlans& plans_;
    std::vector<double> entries_;
};

/// Nothing is stored.
class RecomputedPlans : public PlanOperator {
  public:
    RecomputedPlans(const GibbsPlans& plans, bool rounded) : plans_(plans), rounded_(rounded) {}

    void apply(Team& team, View<double> V, Out<double> out) const override { plans_.plan_costs(team, {V, 0.0}, rounded_, out); }

    void push(Team& team, View<double> m, Out<double> out) const override {
        const Pairs& pairs = plans_.pairs_;
        std::fill(out.begin(), out.end(), 0.0);
        add_tables(team, pairs.size(), FUNCTION * pairs.cells(), out, [&](Index from, Index to, double* table, Watch& watch) {
            Scratch s(pairs);
            for (Index k = from; k < to; ++k) {
                if (m[k] == 0.0) continue;
                const Bound pair(k, pairs, plans_.potentials_);
                make_plan(costs_of_pair(pair, pairs, plans_.W_, s.costs), pair, plans_.beta_, rounded_, s);
                spread(s.K.data(), pair, m[k], table, pairs.n_y);
                watch.spend(Index(FUNCTION) * pair.a() * pair.b());
            }
        });
    }

  private:
    const GibbsPlans& plans_;
    bool rounded_;
};

std::unique_ptr<PlanOperator> PlanOperator::make(Team& team, const GibbsPlans& plans, bool rounded, Form form) {
    if (form == Form::STORED) return std::make_unique<StoredPlans>(team, plans, rounded);
    if (form == Form::RECOMPUTED) return std::make_unique<RecomputedPlans>(plans, rounded);
    if (!plans.shared()) return nullptr;
    auto factored = std::make_unique<FactoredPlans>(team, plans, rounded);
    if (!factored->fit()) return nullptr;
    return factored;
}

void independent_means(Team& team, const Pairs& pairs, View<double> V, Out<double> out) {
    const Index m_x = pairs.x.size(), m_y = pairs.y.size(), n_y = pairs.n_y;
    const bool full = pairs.are_full();
    Panels table, law_y;
    if (full) {
        table = Panels(pairs.n_x, n_y), law_y = Panels(n_y, m_y);
        table.fill([&](Index i, Index j) { return V[i * n_y + j]; });
        law_y.fill([&](Index j, Index y) { return pairs.y.probabilities[y * n_y + j]; });
    }
    const double work = double(pairs.x.states.size()) * double(n_y) + double(pairs.y.states.size()) * double(m_x);
    split(team, m_x, full ? work / 4 : work, [&](Index from, Index to, Watch& watch) {
        std::vector<double> line(padded(n_y)), image(padded(m_y));
        for (Index x = from; x < to; ++x) {
            if (full) {
                multiply({&pairs.x.probabilities[x * pairs.n_x], pairs.n_x, 1}, 1, table, line.data(), padded(n_y));
                multiply({line.data(), padded(n_y), 1}, 1, law_y, image.data(), padded(m_y));
                std::copy_n(image.data(), m_y, &out[x * m_y]);
            } else {
                std::fill(line.begin(), line.end(), 0.0);
                const View<Index> rows = pairs.x.states_of(x);
                for (Index i = 0; i < Index(rows.size()); ++i) add(pairs.x.probabilities_of(x)[i], &V[rows[i] * n_y], n_y, line.data());
                for (Index y = 0; y < m_y; ++y) {
                    const Index* cols = pairs.y.states_of(y).data();
                    const double *q = pairs.y.probabilities_of(y).data(), *means = line.data();
                    out[x * m_y + y] = sum_of(pairs.y.length(y), [=](Index j) { return q[j] * means[cols[j]]; });
                }
            }
            watch.spend(pairs.x.length(x) * n_y + Index(pairs.y.states.size()));
        }
    });
}

// --- linear systems ----------------------------------------------------------------------------------------------

void PlanOperator::apply_system(Team& team, System system, View<double> v, Out<double> out) const {
    if (system.transposed) push(team, v, out);
    else apply(team, v, out);
    for (std::size_t z = 0; z < v.size(); ++z) out[z] = v[z] - system.discount * out[z];
}

Residual PlanOperator::solve(Team& team, System system, View<double> b, Out<double> u, double target, Index max_iterations) const {
    Index products = 0;
    const auto product = [&](View<double> v, Out<double> out) {
        ++products;
        apply_system(team, system, v, out);
    };
    const double worst = bicgstab(team, product, b, u, target, max_iterations);
    return {worst, products};
}

void PlanOperator::sweep(Team& team, System system, View<double> b, Out<double> u, Index times) const {
    engine::sweep(team, [&](View<double> v, Out<double> out) { apply_system(team, system, v, out); }, b, u, times);
}

Residual solve_independent(
    Team& team, const Pairs& pairs, View<Index> listed, double discount, View<double> b, Out<double> u, double target, Index max_iterations
) {
    Index products = 0;
    std::vector<double> table(listed.empty() ? 0 : pairs.size()), means(table.size());
    const auto product = [&](View<double> v, Out<double> out) {
        ++products;
        if (listed.empty()) {
            independent_means(team, pairs, v, out);
            for (std::size_t z = 0; z < v.size(); ++z) out[z] = v[z] - discount * out[z];
            return;
        }
        for (std::size_t k = 0; k < v.size(); ++k) table[listed[k]] = v[k];
        independent_means(team, pairs, table, means);
        for (std::size_t k = 0; k < v.size(); ++k) out[k] = v[k] - discount * means[listed[k]];
    };
    const double worst = bicgstab(team, product, b, u, target, max_iterations);
    return {worst, products};
}

}  // namespace engine
