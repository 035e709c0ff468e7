// Small problems: policy iteration from end to end in one call.
//
// For chains of ten states, Python code around the engine would take several times as long as the engine. Here a whole run
// is one function, with the steps of diffbisim/solvers/exact/solver.py,
//
//     improve    solve every transport for the current table, each from its last basis; this gives T U
//     check      bound the distance by the change T U - U (certificates.hpp)
//     evaluate   compute the table of the new plans, (I - γ Π) U = (1-γ) c, to a residual proportional to the change
//
// and with its stopping rules. Tables are scaled by the largest cost. Only the rare systems on which BiCGStab stagnates
// (periodic chains, discounts near one) are left to the general solver.
//
// Tables of a few dozen pairs are computed by elimination, up to rounding. This takes no longer than ten products, saves
// one or two sweeps, and makes a first sweep on (1-γ) c superfluous: the table of the first bases is a better start.
#pragma once

#include "certificates.hpp"
#include "transports.hpp"

namespace engine {

/// The largest number of states of the two chains together. Beyond it, Python code takes a small part of the time, and
/// full rows have a solver of their own (dense.hpp).
constexpr Index MAX_STATES_OF_SMALL = 64;

/// While the table changes by Δ, pivots that gain less than LOOSE Δ are skipped, and plans are evaluated to ROUGH Δ.
constexpr double LOOSE = 0.001, ROUGH = 0.01;

/// In the first sweep, pivots that gain less than this fraction of the largest entry of the table, 1-γ, are skipped.
constexpr double FIRST = 1e-4;

/// One of the two chains.
struct Chain {
    Rows rows;
    View<double> initial;  // of all states
};

/// What is asked: two chains, the costs (n_X*n_Y) of pairs of states, and the discount γ.
struct SmallProblem {
    Chain x, y;
    View<double> cost;
    double discount;
    bool reachable = false;  // solve only the pairs that some coupling can reach from the starts

    Index n_x() const { return x.rows.size(); }
    Index n_y() const { return y.rows.size(); }
};

/// Where a run starts: a table in the units of the costs, NaN where it is not known, and trees for the same pairs with the
/// same successors. Both may be empty.
struct SmallStart {
    View<double> values;
    View<std::int8_t> child, parent;
};

/// When a run ends.
struct SmallLimits {
    double tol;  // certified gap, relative to the largest cost
    Index max_iterations;
    double seconds;  // no iteration starts after this time, nor one that would end much later
};

/// How a run ended.
enum class Ended : int { CONVERGED = 0, ROUNDING = 1, ITERATIONS = 2, TIME = 3, STAGNATED = 4 };

/// One iteration: the bounds that it proves, and the work so far.
struct SmallStep {
    Bounds bounds;
    Index pivots, improvements, products;
};

/// The arrays of a transport of the starts (`Start`).
struct StartArrays {
    std::vector<Index> rows, cols;
    std::vector<double> p, q;
    std::vector<std::int32_t> child, parent;
    std::vector<double> flow, pot;

    Start view() { return {rows, cols, p, q, {child.data(), parent.data(), flow.data(), Index(flow.size())}, pot}; }
};

/// Where a run ended.
struct SmallSolution {
    std::vector<double> U;  // (n_X*n_Y,) scaled
    std::vector<Index> listed;  // flat pairs that were solved; empty for all
    std::vector<Index> order_x, order_y;  // of first bases (transports.hpp)
    std::vector<Index> at;  // the trees
    std::vector<std::int8_t> child, parent;
    std::vector<double> flow;
    StartArrays start;
    double unbalanced, clipped;  // of the trees
    std::vector<SmallStep> history;
    Ended ended = Ended::STAGNATED;

    const Bounds& bounds() const { return history.back().bounds; }
};

/// Run policy iteration. If it ends by STAGNATED, the problem needs the general solver.
SmallSolution solve_small(const SmallProblem& problem, const SmallStart& start, const SmallLimits& limits, Watch& watch);

/// The pairs (flat, ascending) that some coupling can reach from the pairs of starts.
std::vector<Index> reachable_pairs(const SmallProblem& problem);

/// Several chains, one after another.
struct ChainList {
    View<Index> at;  // (m + 1) the first state of each chain
    View<Index> first;  // (m + 1) its first transition
    Rows rows;  // `first` has n + 1 entries for each chain of n states, from 0; states are those of the chain
    View<double> initial, rewards;  // of all states

    Index size() const { return Index(at.size()) - 1; }
    Chain chain(Index k) const;
    View<double> rewards_of(Index k) const { return rewards.subspan(at[k], at[k + 1] - at[k]); }
};

/// The distances of pairs of chains, in order; bounds are infinite where a pair needs the general solver.
struct ManyProblems {
    ChainList chains;
    View<Index> pairs;  // (2 B) numbers of the chains
    View<double> tables;  // ground costs, one after another; empty for |r_X - r_Y|
    bool squared;  // costs are |r_X - r_Y|²
    double discount;
    SmallLimits limits;
};

/// Solve all pairs with all threads; each array has B entries, `converged` is 1 where the gap is within tol.
void solve_many(Team& team, const ManyProblems& problems, Out<double> value, Out<double> lower, Out<double> upper);

}  // namespace engine
