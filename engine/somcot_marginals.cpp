#include "somcot_marginals.hpp"

#include "exponential.hpp"
#include "lanes.hpp"

namespace engine::somcot {
namespace {

/// Products are used while no base exceeds this: what factors below e^FLUSH lose is then less than e^(SAFE + FLUSH) of μ.
constexpr double SAFE = 270.0;

/// Entries are listed down to e^(DROP - FAR) and e^(DROP - NEAR), and a list is renewed before any other entry could
/// rise by that much, up to MARGIN, which is far more than the rounding errors.
constexpr double FAR = 20.0, NEAR = 4.0, MARGIN = 0.1;

/// Whole rows of L are compared if at least one in WHOLE of its entries belongs to a transition.
constexpr Index WHOLE = 4;

/// Below every logarithm that counts.
constexpr double NOWHERE = -1e300;

/// A row of entries s u ∘ w ∘ K of one pair.
struct Line {
    double su;
    const double* K;
    double* mass;  // the row of N
};

/// Add N_LINES lines to N and to their common column sums; the sum of line r, divided by su, is added to sums[r].
///
/// The length n is a multiple of four. Lines are added to the column sums one after another.
template <int N_LINES> ALWAYS_INLINE void add_lines(const Line (&lines)[N_LINES], const double* w, double* columns, Index n, Lanes (&sums)[N_LINES]) {
    const auto add = [&](Index j, Index part) {
        const Doubles weight = doubles_at(w + j);
        Doubles column = doubles_at(columns + j);
        for (int r = 0; r < N_LINES; ++r) {
            const Doubles share = weight * doubles_at(lines[r].K + j), entry = lines[r].su * share;
            sums[r].part[part] += share;
            Register::store(lines[r].mass + j, doubles_at(lines[r].mass + j) + entry);
            column += entry;
        }
        Register::store(columns + j, column);
    };
    Index j = 0;
    for (; j + 8 <= n; j += 8)
        for (Index part = 0; part < 8 / N_DOUBLES; ++part) add(j + part * N_DOUBLES, part);
    if (j < n)
        for (Index part = 0; part < 4 / N_DOUBLES; ++part) add(j + part * N_DOUBLES, part);
}

/// Whether u[j] + v[j] > level for some j < n.
ALWAYS_INLINE bool any_above(const double* u, const double* v, Index n, double level) {
    Doubles top = Doubles{} - INF;
    double largest = -INF;
    each_lane(n, [&](Index j, auto lane) {
        const auto sum = lane.load(u + j) + lane.load(v + j);
        if constexpr (std::is_same_v<decltype(lane), Single>) largest = sum > largest ? sum : largest;
        else top = sum > top ? sum : top;
    });
    for (Index k = 0; k < N_DOUBLES; ++k) largest = std::max(largest, double(top[k]));
    return largest > level;
}

}  // namespace

void exponentials(double* v, Index n, double least) {
    for (Index i = 0; i < n; ++i) v[i] = exp_or_zero(v[i] < HIGHEST ? v[i] : HIGHEST, least);
}

double largest_of(const double* v, Index n) {
    Doubles top = Doubles{} - INF;
    Index i = 0;
    for (; i + N_DOUBLES <= n; i += N_DOUBLES) top = doubles_at(v + i) > top ? doubles_at(v + i) : top;
    double largest = -INF;
    for (Index k = 0; k < N_DOUBLES; ++k) largest = std::max(largest, top[k]);
    for (; i < n; ++i) largest = std::max(largest, v[i]);
    return largest;
}

Marginals::Marginals(const Seen& x, const Seen& y, Index most_listed)
    : x_(x), y_(y), n_x_(x.states()), n_y_(y.states()), longest_(std::max(n_y_, y.largest_degree())), far_(n_x_), near_(n_x_),
      padded_((n_y_ + 3) / 4 * 4), K_(n_x_ * padded_), mass_(K_.size()), top_(n_x_), w_(padded_ + longest_) {
    const Index a = x.largest_degree(), b = y.largest_degree(), cells = n_x_ * n_y_;
    MA.resize(n_y_ * x.edges()), MB.resize(n_x_ * y.edges()), N.resize(cells), m.resize(cells), rise.resize(cells);
    SU_.resize(n_y_ * a), z_.resize(a * b), su_.resize(a), live_.resize(a);
    const bool positions_fit = std::max({n_y_ * a, y.edges(), cells}) <= std::numeric_limits<std::int32_t>::max();
    room_ = positions_fit ? std::min(n_y_ * a * b + 1, most_listed / n_x_) : 0;
    for (auto* lists : {&far_, &near_})
        for (List& each : *lists) each.since.resize(n_y_);
}

// --- products ----------------------------------------------------------------------------------------------------

/// Set su_ to the factors s u of the pair and w_ to its factors w; returns the largest base.
double Marginals::factors_of_pair(Index x, Index y, const Factors& factors) {
    const Index a = x_.degree(x), b = y_.degree(y), first = x_.at[x];
    const View<Index> to = y_.to.subspan(y_.at[y], b);
    const double* U = factors.U.data() + n_y_ * first + y * a;
    const double* W = factors.W.data() + x * y_.edges() + y_.at[y];
    const double top = largest_of(W, b), shift = factors.S[x * n_y_ + y] + top;
    for (Index i = 0; i < a; ++i) su_[i] = U[i] + shift + top_[x_.to[first + i]];
    const double worst = largest_of(su_.data(), a);
    if (worst > SAFE) return worst;
    double* w = b == n_y_ ? w_.data() : w_.data() + padded_;  // a full row is in order
    for (Index k = 0; k < b; ++k) w[k] = W[k] - top;
    exponentials(w, b, FLUSH);
    exponentials(su_.data(), a, DROP);
    if (b < n_y_) {
        std::fill_n(w_.begin(), n_y_, 0.0);
        for (Index k = 0; k < b; ++k) w_[to[k]] = w[k];
    }
    return worst;
}

/// Add the entries of the pair to MA, MB and N; `columns` is workspace.
void Marginals::add_pair(Index x, Index y, double* columns) {
    const Index a = x_.degree(x), b = y_.degree(y), first = x_.at[x];
    const View<Index> to = y_.to.subspan(y_.at[y], b);
    double* MA_pair = MA.data() + n_y_ * first + y * a;
    double* MB_pair = MB.data() + x * y_.edges() + y_.at[y];
    Index n_live = 0;
    for (Index i = 0; i < a; ++i) {
        live_[n_live] = i;
        n_live += su_[i] > 0.0;
    }
    const auto line = [&](Index i) {
        const Index l = x_.to[first + i] * padded_;
        return Line{su_[i], K_.data() + l, mass_.data() + l};
    };
    std::fill_n(columns, padded_, 0.0);
    std::fill_n(MA_pair, a, 0.0);
    Index l = 0;
    for (; l + 2 <= n_live; l += 2) {
        Lanes sums[2];
        add_lines<2>({line(live_[l]), line(live_[l + 1])}, w_.data(), columns, padded_, sums);
        for (Index r = 0; r < 2; ++r) MA_pair[live_[l + r]] = su_[live_[l + r]] * sums[r].sum();
    }
    if (l < n_live) {
        Lanes sums[1];
        add_lines<1>({line(live_[l])}, w_.data(), columns, padded_, sums);
        MA_pair[live_[l]] = su_[live_[l]] * sums[0].sum();
    }
    for (Index k = 0; k < b; ++k) MB_pair[k] = columns[to[k]];
    m[x * n_y_ + y] = sum_of(a, [&](Index i) { return MA_pair[i]; });
}

bool Marginals::by_products(const Factors& factors, Watch& watch) {
    for (Index i = 0; i < n_x_; ++i) {
        const double* row = factors.L.data() + i * n_y_;
        double* K = K_.data() + i * padded_;
        top_[i] = largest_of(row, n_y_);
        for (Index j = 0; j < n_y_; ++j) K[j] = row[j] - top_[i];
        exponentials(K, n_y_, FLUSH);
    }
    std::fill(mass_.begin(), mass_.end(), 0.0);
    std::vector<double> columns(padded_);
    for (Index x = 0; x < n_x_; ++x)
        for (Index y = 0; y < n_y_; ++y) {
            if (factors_of_pair(x, y, factors) > SAFE) return false;
            add_pair(x, y, columns.data());
            watch.spend(x_.degree(x) * n_y_);
        }
    for (Index i = 0; i < n_x_; ++i) std::copy_n(mass_.data() + i * padded_, n_y_, N.data() + i * n_y_);
    return true;
}

// --- entries -----------------------------------------------------------------------------------------------------

/// The factors of the entries of μ at one x.
struct Marginals::Row {
    Index x, a, first;  // its edges are first … first + a - 1
    const double* SU;  // (n_Y a): log s u
    const double* W;  // (E_Y): the part of x
    const double* L;
};

void List::reserve(Index n) {
    if (Index(u.size()) >= n) return;
    const std::size_t larger = std::max(std::size_t(n), 2 * u.size());
    u.resize(larger), k.resize(larger), target.resize(larger);
}

void Marginals::forget() {
    for (List& each : far_) each.size = List::NONE;
}

Marginals::Row Marginals::row_of(Index x, const Factors& factors) {
    const Index a = x_.degree(x), first = x_.at[x];
    const double* U = factors.U.data() + n_y_ * first;
    for (Index y = 0; y < n_y_; ++y) {
        const double s = factors.S[x * n_y_ + y];
        for (Index i = 0; i < a; ++i) SU_[y * a + i] = s + U[y * a + i];
    }
    return {x, a, first, SU_.data(), factors.W.data() + x * y_.edges(), factors.L.data()};
}

/// Set `out` (a b) to log μ of pair (x, y), su + (W + L), always added in this order.
void Marginals::log_pair(const Row& row, Index y, double* out) const {
    const Index b = y_.degree(y);
    const double* W = row.W + y_.at[y];
    const Index* to = y_.to.data() + y_.at[y];
    for (Index i = 0; i < row.a; ++i) {
        const double su = row.SU[y * row.a + i];
        const double* L = row.L + n_y_ * x_.to[row.first + i];
        double* line = out + i * b;
        if (b == n_y_) {
            for (Index j = 0; j < b; ++j) line[j] = su + (W[j] + L[j]);
        } else {
            for (Index j = 0; j < b; ++j) line[j] = su + (W[j] + L[to[j]]);
        }
    }
}

/// List the entries of one x above e^(DROP - FAR); returns false if there are too many.
///
/// Most rows contain none, and there are no branches inside a row, so that one place after the last entry is written to.
/// Rows of L are compared as a whole, unless y has few successors.
bool Marginals::list(const Row& row, List& found) {
    std::vector<double> w(longest_);
    std::vector<std::int32_t> edge(longest_), column(longest_);
    Index n = 0;
    for (Index y = 0; y < n_y_; ++y) {
        const Index first = y_.at[y], b = y_.degree(y);
        const bool whole = WHOLE * b >= n_y_;
        const Index size = whole ? n_y_ : b;
        std::fill_n(w.begin(), size, NOWHERE);
        for (Index f = first; f < first + b; ++f) {
            const Index j = whole ? y_.to[f] : f - first;
            w[j] = row.W[f], edge[j] = std::int32_t(f), column[j] = std::int32_t(y_.to[f]);
        }
        for (Index i = 0; i < row.a; ++i) {
            const Index e = y * row.a + i, line = n_y_ * x_.to[row.first + i];
            const double low = DROP - FAR - row.SU[e];
            const double* L = row.L + line;
            if (whole && !any_above(w.data(), L, size, low)) continue;
            if (n + size >= room_) return false;
            found.reserve(n + size + 1);
            for (Index j = 0; j < size; ++j) {
                found.u[n] = std::int32_t(e), found.k[n] = edge[j], found.target[n] = std::int32_t(line) + column[j];
                n += w[j] + L[whole ? j : column[j]] > low;
            }
        }
    }
    found.size = n;
    return true;
}

/// Copy the entries of one x above e^(DROP - NEAR) from `far` to `near`.
void Marginals::select(const Row& row, const List& far, List& near) {
    const std::int32_t *u = far.u.data(), *k = far.k.data(), *target = far.target.data();
    near.reserve(far.size + 1);
    if (Index(z_.size()) < far.size) z_.resize(far.size);
    for (Index j = 0; j < far.size; ++j) z_[j] = row.SU[u[j]] + (row.W[k[j]] + row.L[target[j]]);
    Index n = 0;
    for (Index j = 0; j < far.size; ++j) {  // without branches
        near.u[n] = u[j], near.k[n] = k[j], near.target[n] = target[j];
        n += z_[j] > DROP - NEAR;
    }
    near.size = n;
}

/// Whether a log μ outside of the list of x may have risen by `slack`; if so, a new list is valid from now on.
bool Marginals::expired(List& list, Index x, double slack) const {
    const double* now = rise.data() + x * n_y_;
    double largest = list.size != List::NONE ? -INF : INF;
    for (Index y = 0; y < n_y_; ++y) largest = std::max(largest, now[y] - list.since[y]);
    if (largest <= slack - MARGIN) return false;
    std::copy_n(now, n_y_, list.since.begin());
    return true;
}

/// The entries of x to visit, after renewing its lists if they have expired; null for all entries.
const List* Marginals::renewed(Index x, const Row& row) {
    List &far = far_[x], &near = near_[x];
    if (expired(far, x, FAR)) {
        far.size = near.size = List::NONE;
        if (!list(row, far)) far.size = List::NONE;
    }
    if (far.size == List::NONE) return nullptr;
    if (expired(near, x, NEAR)) select(row, far, near);
    return &near;
}

/// Add the listed entries of one x to MA, MB and N.
void Marginals::add_listed(const Row& row, const List& entries) {
    const std::int32_t *u = entries.u.data(), *k = entries.k.data(), *target = entries.target.data();
    double *z = z_.data(), *MA_x = MA.data() + n_y_ * row.first, *MB_x = MB.data() + row.x * y_.edges(), *N_ = N.data();
    for (Index j = 0; j < entries.size; ++j) z[j] = row.SU[u[j]] + (row.W[k[j]] + row.L[target[j]]);
    exponentials(z, entries.size, DROP);
    for (Index j = 0; j < entries.size; ++j) {
        MA_x[u[j]] += z[j];
        MB_x[k[j]] += z[j];
        N_[target[j]] += z[j];
    }
}

/// Add all entries of one x to MA, MB and N, in the order of the lists.
void Marginals::add_all(const Row& row) {
    double* MA_x = MA.data() + n_y_ * row.first;
    for (Index y = 0; y < n_y_; ++y) {
        const Index b = y_.degree(y);
        const Index* to = y_.to.data() + y_.at[y];
        double* MB_pair = MB.data() + row.x * y_.edges() + y_.at[y];
        log_pair(row, y, z_.data());
        exponentials(z_.data(), row.a * b, DROP);
        for (Index i = 0; i < row.a; ++i) {
            const double* z = z_.data() + i * b;
            double* line = N.data() + n_y_ * x_.to[row.first + i];
            double total = 0.0;
            for (Index j = 0; j < b; ++j) {
                MB_pair[j] += z[j];
                line[to[j]] += z[j];
                total += z[j];
            }
            MA_x[y * row.a + i] = total;
        }
    }
}

void Marginals::by_entries(const Factors& factors, Watch& watch) {
    for (auto* sums : {&MA, &MB, &N}) std::fill(sums->begin(), sums->end(), 0.0);
    for (Index x = 0; x < n_x_; ++x) {
        const Row row = row_of(x, factors);
        const Index before = far_[x].size;
        const List* entries = renewed(x, row);
        if (entries) add_listed(row, *entries);
        else add_all(row);
        for (Index y = 0; y < n_y_; ++y) {
            double total = 0.0;
            for (Index i = 0; i < row.a; ++i) total += MA[n_y_ * row.first + y * row.a + i];
            m[x * n_y_ + y] = total;
        }
        const bool all = !entries || before != far_[x].size;
        watch.spend(n_y_ * row.a + (entries ? 5 * entries->size : 0) + (all ? 4 * row.a * y_.edges() : 0));
    }
}

double Marginals::peak(const Factors& factors, Watch& watch) {
    double top = -INF;
    for (Index x = 0; x < n_x_; ++x) {
        const Row row = row_of(x, factors);
        for (Index y = 0; y < n_y_; ++y) {
            log_pair(row, y, z_.data());
            top = std::max(top, largest_of(z_.data(), row.a * y_.degree(y)));
        }
        watch.spend(row.a * y_.edges());
    }
    return top;
}

}  // namespace engine::somcot
