// Wasserstein barycenters of rows of a large kernel, by an interior-point method.
//
// For states x with weights w_x and a table of costs U, the row q of k probabilities nearest to the rows P(·|x) solves
//
//     min Σ_x w_x <U, Π_x>     over Π_x ≥ 0 and q ≥ 0     s.t.  Π_x 1 = P(·|x)  and  Π_xᵀ 1 = q  for every x.
//
// Mehrotra's predictor-corrector method takes ten to thirty iterations for this linear program, whatever its size. Its
// Newton system decomposes into one small system per state; they are coupled only by the k entries of q:
//
//     1. The duals f of the equations Π_x 1 = P(·|x) are eliminated, since their block is diagonal.
//     2. The remaining system A_x of a state is the Laplacian of a graph on its k columns, grounded at the last one (one of
//        the equations Π_xᵀ 1 = q follows from the others). Columns are eliminated as in a Markov chain, by censoring
//        (Grassmann, Taksar & Heyman 1985): there is no subtraction, so that the factors have small relative errors however
//        different the weights of the graph are.
//     3. The sum of the inverses, plus the barrier of q on the diagonal, is a k x k system for the step dq. Then the duals
//        of a state follow from A_x dg = t_x + dq in one solve. (A_x⁻¹ t_x and A_x⁻¹ dq by themselves may be huge and cancel.)
//
// An iteration takes time proportional to k² for every edge (a successor of one of the states) and k³ for every state. The
// first point is feasible (Π = P(·|x) q'), and so are all others up to rounding. If rounding errors become too large, the
// iteration ends at the last good row. Nothing is certified here: the distance of the chain made of these rows is computed
// later.
//
// *One pass over the plans* computes what a step needs. With plans Π, slacks S (reduced costs w U - f - g) and steps df, dg
// of the duals, let u = (df + dg) / S. The predictor's steps are dΠ = Π (u - 1) and dS = -S u, so that the longest step is
// 1 / max(1 - u, u). The corrector's right side is linear in the centering parameter, which is known only after the pass;
// both of its terms are summed.
//
// *Lanes.* Edges are processed in fours, and so are the systems of states. If the number of successors of a state is not a
// multiple of four, its last edge is cut into equal parts; that is the same linear program. Sums are taken in four fixed
// partial sums.
//
// *Negligible edges.* The diagonal of the Newton system is plan / slack. It is of the order of the squared mass of an
// edge, since reduced costs are of order 1 / mass at first, and underflows for masses below 1e-154. Edges with less than
// the fraction NEGLIGIBLE of their row's mass are therefore dropped, and the row is normalized. Moving a mass δ changes a
// transport by at most δ times the range of the costs, whatever the row q is. The mass of a dropped edge is less than the
// rounding error of the sum of its row, so the optimum changes by less than rounding does. Costs are divided by the
// largest one.
#pragma once

#include "parallel.hpp"

namespace engine {

/// Rows to average over: barycenter b is that of the states first[b] … first[b + 1] - 1 with these weights.
struct Averages {
    Rows rows;            // P
    View<double> costs;   // (n, k) U, row-major
    View<Index> first;
    View<Index> states;
    View<double> weights;
    View<double> starts;  // (size, k) positive rows to start from
    Index k;

    Index size() const { return Index(first.size()) - 1; }
};

/// Barycenters, and their duality gaps relative to the cost. A gap is at most the tolerance if the iteration converged,
/// and infinite if no row other than the first is known to be good.
struct Barycenters {
    std::vector<double> rows;  // (size, k)
    std::vector<double> gaps;  // (size,)
};

/// Compute all barycenters to a relative duality gap.
Barycenters barycenters(const Averages& averages, double tolerance, Team& team);

}  // namespace engine
