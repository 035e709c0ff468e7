// Tables over the pairs of states of a problem: which pairs can be reached, in which order first bases take states, and
// the passes over a table in policy iteration.
//
//     z = x n_Y + y         flat pair of states
//     c, U, TU (n_X*n_Y)    costs; the table; the table after a sweep of transports, (1-γ) c + γ OT_U
#pragma once

#include "lanes.hpp"
#include "parallel.hpp"

namespace engine {

/// The rows that lead on from a pair (s, t) of states: rows (a n_X + s, b n_Y + t) for the choices (a, b).
struct PairSuccessors {
    Rows x, y;
    Index n_x, n_y;
    View<Index> choices;  // a and b of every choice, alternating; the single choice (0, 0) for chains
};

/// The pairs that some coupling can reach from `first` through pairs not `seen` yet, in no particular order; marks them as
/// seen. Pairs of `first` count as reached even where they were seen before.
std::vector<Index> reachable(const PairSuccessors& successors, Out<bool> seen, View<Index> first, Watch& watch);

/// One number per state of X and of Y.
struct Keys {
    std::vector<double> x, y;
};

/// Keys such that states matched in sorted order are at low cost.
///
/// The leading singular pair of the doubly centered cost: c ≈ row + column - σ u vᵀ, and -u vᵀ is minimized by the
/// comonotone coupling. For |r_x - r_y| the pair is monotone in the rewards, and the first basis is optimal.
Keys sort_keys(Team& team, View<double> cost, Index n_y);

/// How far two tables differ, and the extreme entries of both; all NaN if any difference is.
struct Extremes {
    double low = INF, high = -INF;  // of the differences
    double least = 0.0, largest = 1.0;

    /// The size of both tables: the largest entry, at least one, plus twice the amount by which the smallest is below zero.
    ///
    /// No entry, no difference of two entries and no potential of a transport with such costs (zero at some node) is larger.
    double size() const { return largest - 2.0 * least; }
};

/// The extremes of TU - U over the pairs; TU has one entry per listed pair.
Extremes extremes(View<Index> listed, View<double> TU, View<double> U);

/// The first term of the Bellman operator, (1-γ) c / scale.
struct CostTerm {
    View<double> cost;
    double scale, discount;
};

/// TU = (1-γ) c + γ TU at all pairs; returns the extremes of TU - U.
Extremes settle(Team& team, const CostTerm& term, View<double> U, Out<double> TU);

/// residual = TU - U - middle, in single precision, and U = TU + shift.
void exchange(Team& team, double middle, double shift, Out<double> U, View<double> TU, Out<float> residual);

/// U += fresh - old
void add_difference(Team& team, View<float> fresh, View<float> old, Out<double> U);

}  // namespace engine
