// SOMCOT's iteration on the factors of the coupling.
//
// Edges e = (x → x') and k = (y → y') are the transitions seen so far, sorted by source. The coupling is never stored:
//
//     log μ(x,y,x',y') = S[x,y] + U[x,y,e] + W[x,y,k] + L[x',y']
//
//     at (n+1), to (E)       state s has the edges at[s] … at[s+1]-1, and edge e leads to to[e]; one Seen per chain
//     U, A, MA (n_Y E_X)     flat; those of pair (x,y) begin at n_Y at[x] + y (edges of x):  part of log μ, α_X, Σ_y' μ
//     W, B, MB (n_X E_Y)     flat; those of pair (x,y) begin at x E_Y + at[y]:               part of log μ, α_Y, Σ_x' μ
//     L, S, V, m, N          (n_X, n_Y), flat;  m = Σ_x'y' μ and N = Σ_xy μ
//     q (E), rho (n)         the transition occupancy that μ should have, and its state marginal
//
// An iteration computes the marginals of μ (somcot_marginals.hpp), which takes nearly all of the time, and then takes
// the steps: V and α follow the residuals of their constraints, additively, and μ, λ_X, λ_Y and the coupling of the
// starts follow the multipliers, multiplicatively. solver.py has the saddle point that these are steps for.
//
// An iteration that is stopped (Watch) has changed nothing, so the iterates are always those of `done` iterations. Sums
// have a fixed order, and nothing depends on how many iterations are run at once: a run that is continued repeats every
// bit. The rounding error of the logarithms, 1e-16 η k V per iteration, acts like a perturbation of the cost by 1e-16 k V.
#pragma once

#include "parallel.hpp"

namespace engine::somcot {

/// The transitions of one chain seen so far: a growing sparse matrix of counts.
struct Seen {
    View<Index> at, to, source;
    Out<double> counts;  // (E) total weights
    Out<double> q, rho;
    View<double> initial;  // (n)

    Index states() const { return Index(initial.size()); }
    Index edges() const { return Index(to.size()); }
    Index degree(Index s) const { return at[s + 1] - at[s]; }

    Index largest_degree() const {
        Index most = 0;
        for (Index s = 0; s < states(); ++s) most = std::max(most, degree(s));
        return most;
    }
};

/// The variables of the iteration.
struct Iterates {
    Out<double> U, W, L, S, A, B, V;
    Out<double> logit_x, logit_y;  // (n_X, n_Y) and (n_Y, n_X): log λ_X and log λ_Y, up to a constant in each row
    Out<double> start, log_start;  // coupling of the starts; its logarithm is up to scalings of rows and columns
    Out<double> sums;  // (4, n_X, n_Y): Σ η m, Σ η start, Σ η λ_X, Σ η λ_Yᵀ
    Out<Index> cold;  // (1): 0 while the marginals are products, then 1
};

/// Options of the solver, for costs scaled to at most one.
struct Rules {
    double discount;
    double eta, beta;  // primal and dual steps
    double decay, decay_from;  // steps decrease like (1 + k / decay_from)^-decay
    double anticipation;  // primal steps use α + anticipation (α⁺ - α): 0 literal, 2 extrapolated
    bool memory;  // use all transitions seen so far, not only the last minibatch
    double bound;  // multipliers are clipped to ± this
};

/// The two chains, the costs (n_X, n_Y) and the rules.
struct SaddlePoint {
    Seen x, y;
    View<double> costs;
    Rules rules;
};

/// Minibatches of one chain, one per iteration: t has the edges and weights at[t] … at[t + 1] - 1.
struct Batches {
    View<Index> at, edges;
    View<double> weights;
};

/// How far a run has come.
struct Progress {
    Out<Index> done;  // (1) iterations
    Out<double> weight;  // (1) sum of the steps η
    Out<double> last;  // (1) <m, c> of the last iterate
};

/// Run one iteration per minibatch. At most `most_listed` entries of μ are listed (somcot_marginals.hpp).
void iterate(const SaddlePoint& problem, const Iterates& it, const Batches& x, const Batches& y, const Progress& progress, Index most_listed, Watch& watch);

/// Initialize α_X and U for the `fresh` edges of X, in all pairs (x,y) where y has known successors.
///
/// α_X is the c-transform of the other multipliers, so that the least slack δ of the edge is zero. U gives the edge the
/// marginal Σ_y' μ = `occupancy` · λ_X(y|x).
void enter_x(const SaddlePoint& problem, const Iterates& it, View<Index> fresh, double occupancy, Watch& watch);

/// The same for α_Y and W.
void enter_y(const SaddlePoint& problem, const Iterates& it, View<Index> fresh, double occupancy, Watch& watch);

}  // namespace engine::somcot
