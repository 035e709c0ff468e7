#include "shared_kernel.hpp"

#include "exponential.hpp"
#include "successors.hpp"

namespace engine {
namespace {

/// Largest exponent of the kernel and of the scalings; exp overflows at 709.
constexpr double SAFE = 600.0;

double middle_of(const double* v, Index n) {
    const auto [least, most] = range_of(v, n);
    return (most + least) / 2;
}

/// One side of a block: the scalings of every pair, the same times the law of the side, and the kernel times the
/// weighted scalings of the other side.
struct Side {
    Index n, stride;
    std::vector<double> scaling, weighted, sums;
    std::vector<const double*> law;

    Side(Index n_, Index pairs)
        : n(n_), stride(padded(n_)), scaling(pairs * stride), weighted(pairs * stride), sums(pairs * stride), law(pairs) {}

    /// Apply a half-step with over-relaxation to pair r; returns the error of its marginal before.
    double relax(Index r, double omega) {
        const double *p = law[r], *s = &sums[r * stride];
        double *u = &scaling[r * stride], *pu = &weighted[r * stride];
        return sum_of_lanes(n, [&](Index j, auto of) {
            const auto own = of.load(u + j), weight = of.load(p + j), have = own * of.load(s + j), off = have - 1.0;
            const auto next = own * relaxed_inverse(have, omega);
            of.store(u + j, next);
            of.store(pu + j, weight * next);
            return weight * (off < 0.0 ? -off : off);
        });
    }

    /// Put pair `from` in the place of pair `to`.
    void move(Index from, Index to) {
        law[to] = law[from];
        std::copy_n(&scaling[from * stride], n, &scaling[to * stride]);
        std::copy_n(&weighted[from * stride], n, &weighted[to * stride]);
    }
};

/// A pair of a block that is not finished.
struct Unfinished {
    Index k;
    double center;  // of its potential g
    double omega, error, before;
};

/// out = p · e^out
void weigh(const double* p, Index n, double* out) {
    for (Index j = 0; j < n; ++j) out[j] = p[j] * exp_of(out[j]);
}

}  // namespace

std::shared_ptr<const SharedKernel> SharedKernel::of(const FullRows& laws, View<double> W, double beta) {
    const auto [least, most] = range_of(W.data(), Index(W.size()));
    if (!all_within(W.data(), Index(W.size()), std::numeric_limits<double>::max()) || !(beta * (most - least) / 2 <= SAFE)) return {};
    return std::make_shared<SharedKernel>(laws, W, beta);
}

SharedKernel::SharedKernel(const FullRows& laws, View<double> W, double beta)
    : laws_(laws), beta_(beta), middle_(middle_of(W.data(), Index(W.size()))), entries_(W.size()), K_(laws.n_x, laws.n_y), K_T_(laws.n_y, laws.n_x) {
    for (Index z = 0; z < Index(W.size()); ++z) entries_[z] = exp_of(-beta * (W[z] - middle_));
    const auto [least, most] = range_of(W.data(), Index(W.size()));
    size_ = beta * (most - least) / 2;
    K_.fill([&](Index i, Index j) { return entry(i, j); });
    K_T_.fill([&](Index j, Index i) { return entry(i, j); });
}

Index SharedKernel::scale(Block block, Potentials potentials, Limit limit, Progress progress, Watch& watch, std::vector<Index>& unfit) const {
    const Index n_x = laws_.n_x, n_y = laws_.n_y;
    Side x(n_x, block.size()), y(n_y, block.size());
    std::vector<Unfinished> pairs;
    for (Index k = block.from; k < block.to; ++k) {
        const Index r = Index(pairs.size());
        const double* g = &potentials.G[k * n_y];
        const double center = middle_of(g, n_y);
        double *w = &y.scaling[r * y.stride], *qw = &y.weighted[r * y.stride];
        x.law[r] = laws_.row_x(k), y.law[r] = laws_.row_y(k);
        for (Index j = 0; j < n_y; ++j) w[j] = beta_ * (g[j] - center);
        if (!all_within(w, n_y, SAFE)) {
            unfit.push_back(k);
            continue;
        }
        for (Index j = 0; j < n_y; ++j) w[j] = exp_of(w[j]), qw[j] = y.law[r][j] * w[j];
        std::fill_n(&x.scaling[r * x.stride], n_x, 1.0);
        pairs.push_back({k, center, progress.omega[k], INF, INF});
    }
    const auto finish = [&](Index r) {
        const Unfinished& pair = pairs[r];
        double *log_u = &x.sums[r * x.stride], *log_w = &y.sums[r * y.stride];
        for (Index i = 0; i < n_x; ++i) log_u[i] = log_of(x.scaling[r * x.stride + i]);
        for (Index j = 0; j < n_y; ++j) log_w[j] = log_of(y.scaling[r * y.stride + j]);
        if (!all_within(log_u, n_x, SAFE) || !all_within(log_w, n_y, SAFE)) return unfit.push_back(pair.k);
        for (Index i = 0; i < n_x; ++i) potentials.F[pair.k * n_x + i] = log_u[i] / beta_ + (middle_ - pair.center);
        for (Index j = 0; j < n_y; ++j) potentials.G[pair.k * n_y + j] = log_w[j] / beta_ + pair.center;
        progress.omega[pair.k] = pair.omega, progress.error[pair.k] = pair.error;
    };
    const auto multiply_rows = [&] { multiply({y.weighted.data(), y.stride, 1}, Index(pairs.size()), K_T_, x.sums.data(), x.stride); };
    const auto multiply_columns = [&] { multiply({x.weighted.data(), x.stride, 1}, Index(pairs.size()), K_, y.sums.data(), y.stride); };

    multiply_rows();
    for (Index r = 0; r < Index(pairs.size()); ++r) x.relax(r, 1.0);
    Index iterations = 0;
    for (Index done = 0; !pairs.empty(); ++done) {
        multiply_columns();
        for (Index r = 0; r < Index(pairs.size()); ++r) pairs[r].error = y.relax(r, done == limit.iterations ? 1.0 : pairs[r].omega);
        multiply_rows();
        for (Index r = Index(pairs.size()) - 1; r >= 0; --r) {
            Unfinished& pair = pairs[r];
            const bool last = done == limit.iterations || pair.error <= limit.error;
            x.relax(r, last ? 1.0 : pair.omega);
            if (!last) {
                pair.omega = relaxation(done + 1, pair.omega, pair.error, pair.before);
                if ((done + 1) % EVERY == 0) pair.before = pair.error;
                continue;
            }
            finish(r);
            iterations += done;
            const Index end = Index(pairs.size()) - 1;  // this one was seen before: it stays
            if (r < end) x.move(end, r), y.move(end, r), pairs[r] = pairs[end];
            pairs.pop_back();
        }
        watch.spend(Index(pairs.size()) * n_x * n_y / 4);
    }
    return iterations;
}

void SharedKernel::half_step(Block block, Potentials potentials, bool columns, Out<double> out, std::vector<Index>& unfit) const {
    const Index n = columns ? laws_.n_x : laws_.n_y, n_out = columns ? laws_.n_y : laws_.n_x;
    Side from(n, block.size()), to(n_out, block.size());
    std::vector<std::pair<Index, double>> pairs;  // and the centers of their potentials
    for (Index k = block.from; k < block.to; ++k) {
        const double *potential = &(columns ? potentials.F : potentials.G)[k * n], center = middle_of(potential, n);
        double* logs = &from.weighted[Index(pairs.size()) * from.stride];
        for (Index j = 0; j < n; ++j) logs[j] = beta_ * (potential[j] - center);
        if (!all_within(logs, n, SAFE - size_)) {
            unfit.push_back(k);
            continue;
        }
        weigh(columns ? laws_.row_x(k) : laws_.row_y(k), n, logs);
        pairs.emplace_back(k, center);
    }
    multiply({from.weighted.data(), from.stride, 1}, Index(pairs.size()), columns ? K_ : K_T_, to.sums.data(), to.stride);
    for (Index r = 0; r < Index(pairs.size()); ++r) {
        const auto [k, center] = pairs[r];
        for (Index j = 0; j < n_out; ++j) out[k * n_out + j] = middle_ - center - log_of(to.sums[r * to.stride + j]) / beta_;
    }
}

double SharedKernel::factors(Block block, Potentials potentials, bool rounded, const Factors& into) const {
    const Index n_x = laws_.n_x, n_y = laws_.n_y, x_stride = padded(n_x), y_stride = padded(n_y), size = block.size();
    for (Index r = 0; r < size; ++r) {
        const double *f = &potentials.F[(block.from + r) * n_x], *g = &potentials.G[(block.from + r) * n_y];
        double *u = into.u + r * x_stride, *w = into.w + r * y_stride;
        const double shift = (middle_of(f, n_x) - middle_of(g, n_y) + middle_) / 2;
        for (Index i = 0; i < n_x; ++i) u[i] = beta_ * (f[i] - shift);
        for (Index j = 0; j < n_y; ++j) w[j] = beta_ * (g[j] + (shift - middle_));
        if (!all_within(u, n_x, SAFE) || !all_within(w, n_y, SAFE)) return INF;
        weigh(laws_.row_x(block.from + r), n_x, u);
        weigh(laws_.row_y(block.from + r), n_y, w);
    }
    if (!rounded) return 0.0;
    // Scale down the entries of one side that are too heavy.
    const auto shrink = [&](const double* p, double* scaling, const double* sums, Index n) {
        for (Index j = 0; j < n; ++j) {
            const double have = scaling[j] * sums[j];
            scaling[j] *= have > p[j] ? p[j] / have : 1.0;
        }
    };
    // Replace the sums by the missing mass of one side, and return its total.
    const auto missing = [&](const double* p, const double* scaling, double* sums, Index n) {
        for (Index j = 0; j < n; ++j) {
            const double lack = p[j] - scaling[j] * sums[j];
            sums[j] = lack > LAST_DIGITS * p[j] ? lack : 0.0;
        }
        return sum_of(n, [=](Index j) { return sums[j]; });
    };
    const auto rows = [&] { multiply({into.w, y_stride, 1}, size, K_T_, into.row, x_stride); };
    const auto columns = [&] { multiply({into.u, x_stride, 1}, size, K_, into.col, y_stride); };
    rows();
    for (Index r = 0; r < size; ++r) {
        const double* sums = into.row + r * x_stride;
        if (!all_within(sums, n_x, std::numeric_limits<double>::max())) return INF;  // no half-step made a marginal exact
        shrink(laws_.row_x(block.from + r), into.u + r * x_stride, sums, n_x);
    }
    columns();
    for (Index r = 0; r < size; ++r) shrink(laws_.row_y(block.from + r), into.w + r * y_stride, into.col + r * y_stride, n_y);
    rows();
    columns();
    double most = 0.0;
    for (Index r = 0; r < size; ++r) {
        const double total = missing(laws_.row_x(block.from + r), into.u + r * x_stride, into.row + r * x_stride, n_x);
        missing(laws_.row_y(block.from + r), into.w + r * y_stride, into.col + r * y_stride, n_y);
        for (Index i = 0; i < n_x; ++i) into.row[r * x_stride + i] /= total > 1e-300 ? total : 1.0;
        most = std::max(most, total);
    }
    return most;
}

}  // namespace engine
