// Operations on the costs and the plan of one pair of rows, as matrices on their successors.
//
// For a row of X with a successors and law p, a row of Y with b successors and law q, and their costs C (a × b):
//
//     f_i = min_j C_ij - g_j      the c-transform, the best f for g; two in a row make any g feasible
//     K (a × b)                   a plan, rounded to the marginals p and q
//
// *Rounding* (Altschuler, Weed, Rigollet 2017): scale down rows that are too heavy, then columns, and add the missing mass
// as a rank-one term. The marginals are then exact, and at most twice the mass of their error is moved.
#pragma once

#include "simplex.hpp"

namespace engine {

/// Marginal errors below this, relative to the mass, are ignored, so that zero entries stay zero.
constexpr double LAST_DIGITS = 4 * EPS;

/// f_i = min_j C_ij - g_j
inline void transform_rows(const Costs& C, const double* g, double* f) {
    for (Index i = 0; i < C.a; ++i) f[i] = least_of(C.row(i), g, C.b);
}

/// g_j = min_i C_ij - f_i
inline void transform_columns(const Costs& C, const double* f, double* g) {
    std::fill(g, g + C.b, INF);
    for (Index i = 0; i < C.a; ++i) {
        const double* line = C.row(i);
        const double own = f[i];
        each_lane(C.b, [&](Index j, auto of) {
            const auto value = of.load(line + j) - own, before = of.load(g + j);
            of.store(g + j, value < before ? value : before);
        });
    }
}

/// Part of a matrix: rows of b entries, `stride` numbers from row to row.
struct Strip {
    const double* entries;
    Index stride, rows;

    Strip from(Index j) const { return {entries + j, stride, rows}; }
};

/// sums_j = Σ_i u_i K_ij for N registers, or N single entries, in the order of i.
template <int N, class Kind> ALWAYS_INLINE void weighted_sums_at(Strip K, const double* u, double* sums, Kind of) {
    constexpr Index WIDTH = Index(sizeof(typename Kind::Type) / sizeof(double));
    typename Kind::Type totals[N] = {};
    for (Index i = 0; i < K.rows; ++i)
        for (int n = 0; n < N; ++n) totals[n] += u[i] * of.load(K.entries + i * K.stride + n * WIDTH);
    for (int n = 0; n < N; ++n) of.store(sums + n * WIDTH, totals[n]);
}

/// sums_j = Σ_i u_i K_ij for j < b, in the order of i.
inline void weighted_column_sums(Strip K, const double* u, Index b, double* sums) {
    Index j = 0;
    for (; j + 4 * N_DOUBLES <= b; j += 4 * N_DOUBLES) weighted_sums_at<4>(K.from(j), u, sums + j, Register{});
    for (; j + N_DOUBLES <= b; j += N_DOUBLES) weighted_sums_at<1>(K.from(j), u, sums + j, Register{});
    for (; j < b; ++j) weighted_sums_at<1>(K.from(j), u, sums + j, Single{});
}

/// sums_j = Σ_i K_ij, in the order of i
inline void column_sums(const double* K, Index a, Index b, double* sums) {
    std::fill(sums, sums + b, 0.0);
    for (Index i = 0; i < a; ++i)
        each_lane(b, [&](Index j, auto of) { of.store(sums + j, of.load(sums + j) + of.load(K + i * b + j)); });
}

/// Round K (a × b) in place to a plan with the marginals p and q, up to the last digits; `row` (a) and `col` (b) are
/// scratch.
inline void round_plan(double* K, View<double> p, View<double> q, double* row, double* col) {
    const Index a = Index(p.size()), b = Index(q.size());
    const auto total_of = [&](Index i) { return sum_of(b, [=](Index j) { return K[i * b + j]; }); };
    for (Index i = 0; i < a; ++i) {
        const double total = total_of(i);
        if (total > p[i])
            for (Index j = 0; j < b; ++j) K[i * b + j] *= p[i] / total;
    }
    column_sums(K, a, b, col);
    for (Index j = 0; j < b; ++j) col[j] = col[j] > q[j] ? q[j] / col[j] : 1.0;
    double lack = 0.0;
    for (Index i = 0; i < a; ++i) {
        for (Index j = 0; j < b; ++j) K[i * b + j] *= col[j];
        const double missing = p[i] - total_of(i);
        row[i] = missing > LAST_DIGITS * p[i] ? missing : 0.0;
        lack += row[i];
    }
    if (!(lack > 1e-300)) return;
    column_sums(K, a, b, col);
    for (Index j = 0; j < b; ++j) {
        const double missing = q[j] - col[j];
        col[j] = missing > LAST_DIGITS * q[j] ? missing : 0.0;
    }
    for (Index i = 0; i < a; ++i) {
        const double share = row[i] / lack;
        for (Index j = 0; j < b; ++j) K[i * b + j] += share * col[j];
    }
}

}  // namespace engine
