#include "linear.hpp"

#include <cmath>

#include "lanes.hpp"

namespace engine {
namespace {

/// Columns of a panel, whose rows of the matrix (a few kilobytes each) stay in the cache.
constexpr Index PANEL = 48;

/// Rows that are updated together.
constexpr Index ROWS_AT_ONCE = 4;

/// Subtract l_ik times row k from row i, for rows below a panel: target(i, j) -= Σ_k factors(i, k) source(k, j), in the order of k.
struct Update {
    const double* factors;  // (rows, depth), with `stride`
    Index stride;
    const double* source;  // (depth, columns), with `width`
    double* target;  // (rows, columns), with `width`
    Index width, depth, columns;

    template <Index R> ALWAYS_INLINE void rows(Index i) const {
        Index j = 0;
        for (; j + 2 * N_DOUBLES <= columns; j += 2 * N_DOUBLES) vectors<R, 2>(i, j);
        for (; j + N_DOUBLES <= columns; j += N_DOUBLES) vectors<R, 1>(i, j);
        for (; j < columns; ++j)
            for (Index r = i; r < i + R; ++r) {
                double value = target[r * width + j];
                for (Index k = 0; k < depth; ++k) value -= factors[r * stride + k] * source[k * width + j];
                target[r * width + j] = value;
            }
    }

  private:
    template <Index R, Index V> ALWAYS_INLINE void vectors(Index i, Index j) const {
        Doubles value[R][V];
        for (Index r = 0; r < R; ++r)
            for (Index v = 0; v < V; ++v) value[r][v] = doubles_at(target + (i + r) * width + j + v * N_DOUBLES);
        for (Index k = 0; k < depth; ++k)
            for (Index v = 0; v < V; ++v) {
                const Doubles line = doubles_at(source + k * width + j + v * N_DOUBLES);
                for (Index r = 0; r < R; ++r) value[r][v] -= factors[(i + r) * stride + k] * line;
            }
        for (Index r = 0; r < R; ++r)
            for (Index v = 0; v < V; ++v)
                *reinterpret_cast<Doubles*>(target + (i + r) * width + j + v * N_DOUBLES) = value[r][v];
    }
};

void update(const Update& u, Index rows, Team& team) {
    split(team, rows, double(rows) * double(u.depth) * double(u.columns) / 4.0, [&](Index lo, Index hi, Watch& watch) {
        Index i = lo;
        for (; i + ROWS_AT_ONCE <= hi; i += ROWS_AT_ONCE) {
            u.rows<ROWS_AT_ONCE>(i);
            watch.spend(u.depth * u.columns);
        }
        for (; i < hi; ++i) u.rows<1>(i);
    });
}

/// Eliminate the columns first … last - 1 of the rows below them, within the panel; exchanges whole rows.
bool eliminate_panel(const DenseSystem& s, Index first, Index last) {
    double* A = s.A.data();
    for (Index k = first; k < last; ++k) {
        Index pivot = k;
        for (Index i = k + 1; i < s.n; ++i)
            if (std::abs(A[i * s.n + k]) > std::abs(A[pivot * s.n + k])) pivot = i;
        if (!(std::abs(A[pivot * s.n + k]) > 0.0)) return false;
        if (pivot != k) {
            std::swap_ranges(A + k * s.n, A + (k + 1) * s.n, A + pivot * s.n);
            std::swap_ranges(s.B.data() + k * s.m, s.B.data() + (k + 1) * s.m, s.B.data() + pivot * s.m);
        }
        const double* line = A + k * s.n;
        for (Index i = k + 1; i < s.n; ++i) {
            double* row = A + i * s.n;
            const double factor = row[k] /= line[k];
            for (Index j = k + 1; j < last; ++j) row[j] -= factor * line[j];
        }
    }
    return true;
}

/// Finish the rows of a panel to the right of it: each is updated by the panel's rows above it.
void finish_rows(const double* A, Index n, Index first, Index last, double* target, Index width, Index from) {
    for (Index i = first + 1; i < last; ++i)
        Update{A + i * n + first, n, target + first * width + from, target + i * width + from, width, i - first, width - from}.rows<1>(0);
}

}  // namespace

bool solve_dense(const DenseSystem& s, Team& team) {
    double *A = s.A.data(), *B = s.B.data();
    const Index n = s.n, m = s.m;
    for (Index first = 0; first < n; first += PANEL) {
        const Index last = std::min(first + PANEL, n), below = n - last, depth = last - first;
        if (!eliminate_panel(s, first, last)) return false;
        finish_rows(A, n, first, last, A, n, last);
        finish_rows(A, n, first, last, B, m, 0);
        const double* factors = A + last * n + first;
        if (below > 0) update({factors, n, A + first * n + last, A + last * n + last, n, depth, n - last}, below, team);
        update({factors, n, B + first * m, B + last * m, m, depth, m}, below, team);
    }
    Watch watch(team);
    for (Index i = n - 1; i >= 0; --i) {  // back substitution, from the last unknown
        double* row = B + i * m;
        for (Index k = n - 1; k > i; --k)
            for (Index j = 0; j < m; ++j) row[j] -= A[i * n + k] * B[k * m + j];
        for (Index j = 0; j < m; ++j) row[j] /= A[i * n + i];
        watch.spend((n - i) * m);
    }
    return true;
}

}  // namespace engine
