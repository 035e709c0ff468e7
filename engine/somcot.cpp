#include "somcot.hpp"

#include "exponential.hpp"
#include "lanes.hpp"
#include "somcot_marginals.hpp"

namespace engine::somcot {
namespace {

/// The marginals are products at first if the supports have at least this fraction of all entries.
constexpr double DENSE = 1.0 / 16;

/// Entries count as zero relative to a mass of about one; if the mass is not in (LEAST, 1/LEAST), μ is normalized first.
constexpr double LEAST = 1e-6;

/// Dual steps are divided by occupancies, but never by less than this fraction of the uniform one.
constexpr double FLOOR = 0.1;

/// Larger than every bound on a multiplier.
constexpr double HUGE_BOUND = 1e300;

/// log of the smallest exponential that is not rounded to zero.
constexpr double LOWEST = -700.0;

template <class T> ALWAYS_INLINE T smaller(T u, T v) { return v < u ? v : u; }
template <class T> ALWAYS_INLINE T larger(T u, T v) { return v > u ? v : u; }

/// The smallest of all v that are passed to `see`.
struct Least {
    Doubles of_registers = Doubles{} + HUGE_BOUND;
    double of_others = HUGE_BOUND;

    ALWAYS_INLINE void see(Doubles v) { of_registers = smaller<Doubles>(of_registers, v); }
    ALWAYS_INLINE void see(double v) { of_others = smaller(of_others, v); }

    ALWAYS_INLINE double value() const {
        double least = of_others;
        for (Index k = 0; k < N_DOUBLES; ++k) least = smaller(least, double(of_registers[k]));
        return least;
    }
};

/// Set each row of `out` to the softmax of the same row of `logits`, n numbers each.
void softmax(View<double> logits, Index n, double* out) {
    for (Index first = 0; first < Index(logits.size()); first += n) {
        const double* row = logits.data() + first;
        double* p = out + first;
        const double top = largest_of(row, n);
        for (Index j = 0; j < n; ++j) p[j] = exp_of(larger(row[j] - top, FLUSH));
        const double total = sum_of(n, [=](Index j) { return p[j]; });
        for (Index j = 0; j < n; ++j) p[j] /= total;
    }
}

/// Set q = ρ P̂ and then ρ ← (1-γ) ν + γ ρ P̂, with P̂ from the counts; states without successors keep their mass.
void balance(const Seen& side, double discount, std::vector<double>& after) {
    const Index n = side.states();
    after.resize(n);
    for (Index s = 0; s < n; ++s) after[s] = (1 - discount) * side.initial[s];
    for (Index s = 0; s < n; ++s) {
        const Index first = side.at[s], degree = side.degree(s);
        const double *counts = side.counts.data() + first, rho = side.rho[s];
        double* q = side.q.data() + first;
        const double total = sum_of(degree, [=](Index e) { return counts[e]; });
        if (total > 0.0) {
            for (Index e = 0; e < degree; ++e) q[e] = rho * counts[e] / total;
            for (Index e = 0; e < degree; ++e) after[side.to[first + e]] += discount * q[e];
        } else {
            after[s] += discount * rho;
        }
    }
    std::copy(after.begin(), after.end(), side.rho.begin());
}

/// A table of logarithms, by rows or by columns.
struct Lines {
    double* first;
    Index count, length, stride, step;  // lines, entries of each, from line to line, from entry to entry

    double& operator()(Index i, Index j) const { return first[i * stride + j * step]; }
};

/// Shift every line i so that its exponentials over the entries with q > 0 sum to p[i].
void scale_lines(const Lines& logarithms, View<double> p, View<double> q) {
    for (Index i = 0; i < logarithms.count; ++i) {
        if (!(p[i] > 0.0)) continue;
        double top = -HUGE_BOUND, total = 0.0;
        for (Index j = 0; j < logarithms.length; ++j)
            if (q[j] > 0.0) top = std::max(top, logarithms(i, j));
        for (Index j = 0; j < logarithms.length; ++j)
            if (q[j] > 0.0) total += exp_or_zero(logarithms(i, j) - top, LOWEST);
        const double shift = log_of(p[i]) - log_of(total) - top;  // a quotient could underflow
        for (Index j = 0; j < logarithms.length; ++j) logarithms(i, j) += shift;
    }
}

/// Step sizes and normalization of one iteration.
struct Step {
    double eta, beta;
    double scale;  // one over the mass of μ
    double log_mass;
};

/// The multipliers α of one chain, and what their steps depend on.
struct Duals {
    double* alpha;
    double* log_share;  // their part of log μ: U or W
    const double* M;  // the marginal of μ
    const double* step;  // (E) step sizes
    const double* q;  // (E)
    const double* then;  // (E) γ times the part of a lower bound on V that belongs to the edge (see ascend_v)
};

/// What the multipliers of one pair are after a step, extrapolated.
struct Ascended {
    double tilt;  // Σ q α̂
    double low;  // min (α̂ + then)
};

/// Step α += step (M - q λ), clipped, for the n edges of one pair, and update their part of log μ.
///
/// `at` is the first place in alpha, log_share and M, and `edge` that in the others.
ALWAYS_INLINE Ascended ascend(const Duals& duals, Index at, Index edge, Index n, double lambda, const Step& size, const Rules& rules) {
    double *alpha = duals.alpha + at, *log_share = duals.log_share + at;
    const double *M = duals.M + at, *step = duals.step + edge, *q = duals.q + edge, *then = duals.then + edge;
    Lanes tilts;
    Least low;
    each_lane(n, [&](Index i, auto lane) {
        using In = decltype(lane);
        using T = typename In::Type;
        const T old = In::load(alpha + i), weight = In::load(q + i), bound = T{} + rules.bound;
        const T raw = old + In::load(step + i) * (In::load(M + i) * size.scale - weight * lambda);
        const T next = smaller<T>(larger<T>(raw, -bound), bound), ahead = old + rules.anticipation * (next - old);
        In::store(alpha + i, next);
        In::store(log_share + i, In::load(log_share + i) - size.eta * ahead);
        tilts.add(i, weight * ahead);
        low.see(ahead + In::load(then + i));
    });
    return {tilts.sum(), low.value()};
}

/// One call of `iterate`.
class Iteration {
  public:
    Iteration(const SaddlePoint& problem, const Iterates& it, Index most_listed, Watch& watch)
        : x_(problem.x), y_(problem.y), c_(problem.costs.data()), rules_(problem.rules), it_(it), watch_(watch), n_x_(x_.states()), n_y_(y_.states()),
          marginals_(x_, y_, most_listed), lambda_x_(n_x_ * n_y_), lambda_y_(n_x_ * n_y_), levels_(n_x_ * n_y_), step_x_(x_.edges()), step_y_(y_.edges()),
          then_x_(x_.edges()), then_y_(y_.edges()), step_v_(n_y_), least_x_(n_x_), least_y_(n_y_) {
        if (double(x_.edges()) * double(y_.edges()) < DENSE * double(n_x_ * n_y_) * double(n_x_ * n_y_)) it_.cold[0] = 1;
    }

    /// Iteration t of the minibatches.
    void run(const Batches& x, const Batches& y, Index t, const Progress& progress) {
        const double mass = normalized_marginals();  // the only part that takes long; until here nothing has changed
        std::copy(levels_.begin(), levels_.end(), it_.S.begin());
        const double k = double(progress.done[0]);
        const double fade = exp_or_zero(-rules_.decay * log_of(1.0 + k / rules_.decay_from), LOWEST);
        const Step step{rules_.eta * fade, rules_.beta * fade, 1.0 / mass, log_of(mass)};
        observe(x_, x, t);
        observe(y_, y, t);
        softmax(it_.logit_x, n_y_, lambda_x_.data());
        softmax(it_.logit_y, n_x_, lambda_y_.data());
        couple_starts();
        add_up(step.eta);
        ascend_v(step);
        ascend_alpha(step);
        const double* m = marginals_.m.data();
        progress.last[0] = sum_of(n_x_ * n_y_, [=, c = c_](Index z) { return m[z] * c[z]; });
        progress.weight[0] += step.eta;
        progress.done[0] += 1;
        watch_.spend(2 * (n_y_ * x_.edges() + n_x_ * y_.edges()) + 10 * n_x_ * n_y_);
    }

  private:
    const Seen x_, y_;
    const double* c_;
    const Rules rules_;
    const Iterates it_;
    Watch& watch_;
    const Index n_x_, n_y_;
    Marginals marginals_;
    std::vector<double> lambda_x_, lambda_y_;
    std::vector<double> levels_;  // S, normalized
    std::vector<double> step_x_, step_y_, then_x_, then_y_, step_v_, least_x_, least_y_, after_;

    Factors factors() const { return {it_.U, it_.W, it_.L, levels_}; }

    void compute_marginals() {
        if (it_.cold[0] == 0 && !marginals_.by_products(factors(), watch_)) it_.cold[0] = 1;
        if (it_.cold[0] != 0) marginals_.by_entries(factors(), watch_);
    }

    double mass() const {
        const double* m = marginals_.m.data();
        return sum_of(n_x_ * n_y_, [=](Index z) { return m[z]; });
    }

    /// Compute the marginals and divide m and N by the mass of μ, which is returned.
    double normalized_marginals() {
        std::copy(it_.S.begin(), it_.S.end(), levels_.begin());
        compute_marginals();
        double total = mass();
        if (!(LEAST < total && total < 1 / LEAST)) {  // after a large step, the last normalization is off
            const double top = marginals_.peak(factors(), watch_);
            for (double& level : levels_) level -= top;
            marginals_.forget();
            marginals_.by_entries(factors(), watch_);
            total = mass();
        }
        for (double& entry : marginals_.m) entry /= total;
        for (double& entry : marginals_.N) entry /= total;
        return total;
    }

    /// Count minibatch t and update the occupancy that μ should have.
    void observe(const Seen& side, const Batches& draws, Index t) {
        double total = 0.0;
        for (Index i = draws.at[t]; i < draws.at[t + 1]; ++i) {
            side.counts[draws.edges[i]] += draws.weights[i];
            total += draws.weights[i];
        }
        if (rules_.memory) return balance(side, rules_.discount, after_);
        std::fill(side.q.begin(), side.q.end(), 0.0);
        for (Index i = draws.at[t]; i < draws.at[t + 1]; ++i) side.q[draws.edges[i]] += draws.weights[i] / total;
    }

    /// Scale the coupling of the starts once (Sinkhorn); its columns become exact, its rows converge.
    void couple_starts() {
        const View<double> p = x_.initial, q = y_.initial;
        scale_lines({it_.log_start.data(), n_x_, n_y_, n_y_, 1}, p, q);
        scale_lines({it_.log_start.data(), n_y_, n_x_, 1, n_y_}, q, p);
        for (Index x = 0; x < n_x_; ++x)
            for (Index y = 0; y < n_y_; ++y)
                if (p[x] > 0.0 && q[y] > 0.0) it_.start[x * n_y_ + y] = exp_or_zero(it_.log_start[x * n_y_ + y], LOWEST);
    }

    /// Add this iterate to the running sums.
    void add_up(double eta) {
        const Index cells = n_x_ * n_y_;
        double* sums = it_.sums.data();
        for (Index z = 0; z < cells; ++z) sums[z] += eta * marginals_.m[z];
        for (Index z = 0; z < cells; ++z) sums[cells + z] += eta * it_.start[z];
        for (Index z = 0; z < cells; ++z) sums[2 * cells + z] += eta * lambda_x_[z];
        for (Index x = 0; x < n_x_; ++x)
            for (Index y = 0; y < n_y_; ++y) sums[3 * cells + x * n_y_ + y] += eta * lambda_y_[y * n_x_ + x];
    }

    /// Step V and update log μ, the bound on its increase, and its normalization.
    ///
    /// Afterwards V̂(x',y') ≥ least_x_(x') + least_y_(y'). Any second vector would do; with the mean of V over x' the bound
    /// is good.
    void ascend_v(const Step& size) {
        std::fill(least_y_.begin(), least_y_.end(), 0.0);
        for (Index x = 0; x < n_x_; ++x)
            for (Index y = 0; y < n_y_; ++y) least_y_[y] += it_.V[x * n_y_ + y] / double(n_x_);
        std::fill(step_v_.begin(), step_v_.end(), size.beta);
        for (Index x = 0; x < n_x_; ++x) {
            if (rules_.memory)
                for (Index y = 0; y < n_y_; ++y) step_v_[y] = size.beta / larger(x_.rho[x] * y_.rho[y], FLOOR / double(n_x_ * n_y_));
            ascend_v_row(x, size);
        }
    }

    void ascend_v_row(Index x, const Step& size) {
        const double discount = rules_.discount;
        const Index first = x * n_y_;
        double *V = it_.V.data() + first, *L = it_.L.data() + first, *S = it_.S.data() + first, *log_start = it_.log_start.data() + first;
        double* rise = marginals_.rise.data() + first;
        const double *N = marginals_.N.data() + first, *m = marginals_.m.data() + first, *start = it_.start.data() + first, *c = c_ + first;
        Least low;
        each_lane(n_y_, [&](Index y, auto lane) {
            using In = decltype(lane);
            using T = typename In::Type;
            const T old = In::load(V + y), bound = T{} + rules_.bound;
            const T raw = old + In::load(&step_v_[y]) * (discount * In::load(N + y) + (1 - discount) * In::load(start + y) - In::load(m + y));
            const T next = smaller<T>(larger<T>(raw, -bound), bound), ahead = old + rules_.anticipation * (next - old);
            const T gain = size.eta * (ahead - In::load(c + y)) - size.log_mass;
            In::store(V + y, next);
            In::store(L + y, In::load(L + y) - size.eta * discount * ahead);
            In::store(S + y, In::load(S + y) + gain);
            In::store(log_start + y, In::load(log_start + y) - size.eta * (1 - discount) * ahead);
            In::store(rise + y, In::load(rise + y) + gain);
            low.see(ahead - In::load(&least_y_[y]));
        });
        least_x_[x] = low.value();
    }

    /// Set the step sizes of the edges of one chain, and γ times the part of the bound on V at their targets.
    void prepare(const Seen& side, double beta, const std::vector<double>& least, std::vector<double>& step, std::vector<double>& then) {
        const double least_share = FLOOR / double(side.edges());
        for (Index e = 0; e < side.edges(); ++e) step[e] = rules_.memory ? beta / larger(side.q[e], least_share) : beta;
        for (Index e = 0; e < side.edges(); ++e) then[e] = rules_.discount * least[side.to[e]];
    }

    /// Step α_X and α_Y; update log μ, the bound on its increase (γ V included) and the logits of λ_X and λ_Y.
    void ascend_alpha(const Step& size) {
        prepare(x_, size.beta, least_x_, step_x_, then_x_);
        prepare(y_, size.beta, least_y_, step_y_, then_y_);
        const Duals of_x{it_.A.data(), it_.U.data(), marginals_.MA.data(), step_x_.data(), x_.q.data(), then_x_.data()};
        const Duals of_y{it_.B.data(), it_.W.data(), marginals_.MB.data(), step_y_.data(), y_.q.data(), then_y_.data()};
        for (Index x = 0; x < n_x_; ++x) {
            const Index e = x_.at[x], a = x_.degree(x);
            for (Index y = 0; y < n_y_; ++y) {
                const Index k = y_.at[y], b = y_.degree(y), xy = x * n_y_ + y, yx = y * n_x_ + x;
                const Ascended on_x = ascend(of_x, n_y_ * e + y * a, e, a, lambda_x_[xy], size, rules_);
                const Ascended on_y = ascend(of_y, x * y_.edges() + k, k, b, lambda_y_[yx], size, rules_);
                it_.logit_x[xy] += size.eta * on_x.tilt;
                it_.logit_y[yx] += size.eta * on_y.tilt;
                if (a > 0 && b > 0) marginals_.rise[xy] -= size.eta * (on_x.low + on_y.low);
            }
        }
    }
};

/// The part of the variables that belongs to the chain of new edges, in all pairs with the states of the other chain.
struct Entering {
    const Seen &own, &other;
    View<double> logits;  // of λ, a row per state of the chain
    double *alpha, *log_share;
    View<double> alpha_other, log_share_other;
};

/// Initialize the `fresh` edges of X (or Y): enter_x and enter_y.
template <bool OF_X> void enter(const SaddlePoint& problem, const Iterates& it, const Entering& all, View<Index> fresh, double occupancy, Watch& watch) {
    const Seen &x = problem.x, &y = problem.y;
    const Index n_y = y.states(), n_other = all.other.states();
    const auto place_of_x = [&](Index s, Index t, Index e) { return n_y * x.at[s] + t * x.degree(s) + e - x.at[s]; };
    const auto place_of_y = [&](Index s, Index, Index k) { return s * y.edges() + k; };
    std::vector<double> lambda(all.logits.size()), terms(all.other.largest_degree());
    softmax(all.logits, n_other, lambda.data());
    for (const Index e : fresh) {
        const Index s = all.own.source[e], after = all.own.to[e];
        for (Index t = 0; t < n_other; ++t) {
            const Index first = all.other.at[t], degree = all.other.degree(t), xy = OF_X ? s * n_y + t : t * n_y + s;
            if (degree == 0) continue;
            double low = HUGE_BOUND;
            for (Index i = 0; i < degree; ++i) {
                const Index f = first + i, then = all.other.to[f];
                const Index at = OF_X ? place_of_y(s, t, f) : place_of_x(t, s, f), next = OF_X ? after * n_y + then : then * n_y + after;
                low = smaller(low, problem.costs[xy] + all.alpha_other[at] + problem.rules.discount * it.V[next] - it.V[xy]);
                terms[i] = all.log_share_other[at] + it.L[next];
            }
            const double top = largest_of(terms.data(), degree);
            for (Index i = 0; i < degree; ++i) terms[i] = exp_or_zero(terms[i] - top, LOWEST);
            const double total = sum_of(degree, [&](Index i) { return terms[i]; });
            const Index at = OF_X ? place_of_x(s, t, e) : place_of_y(t, s, e);
            all.alpha[at] = -low;
            all.log_share[at] = log_of(occupancy * lambda[s * n_other + t] / total) - top - it.S[xy];
            watch.spend(5 * degree);
        }
    }
}

}  // namespace

void iterate(const SaddlePoint& problem, const Iterates& it, const Batches& x, const Batches& y, const Progress& progress, Index most_listed, Watch& watch) {
    Iteration iteration(problem, it, most_listed, watch);
    for (Index t = 0; t + 1 < Index(x.at.size()); ++t) iteration.run(x, y, t, progress);
}

void enter_x(const SaddlePoint& problem, const Iterates& it, View<Index> fresh, double occupancy, Watch& watch) {
    enter<true>(problem, it, {problem.x, problem.y, it.logit_x, it.A.data(), it.U.data(), it.B, it.W}, fresh, occupancy, watch);
}

void enter_y(const SaddlePoint& problem, const Iterates& it, View<Index> fresh, double occupancy, Watch& watch) {
    enter<false>(problem, it, {problem.y, problem.x, it.logit_y, it.B.data(), it.W.data(), it.A, it.U}, fresh, occupancy, watch);
}

}  // namespace engine::somcot
