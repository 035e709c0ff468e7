// Games on pairs of states: distances between MDPs with actions.
//
// The table U is the fixed point of a game. A *choice* c is a pair (a, b) of actions, with
//
//     δ_c(s,t) = (1-γ) c_c(s,t) + γ OT_U(P_a(·|s), Q_b(·|t)),
//
// and a *line* is a set of choices. The adversary picks a line, the other side a choice within it:
//
//     (T U)(s,t) = max over lines ℓ of min over c in ℓ of δ_c(s,t)
//
// There are N pairs p with C choices each. Choice c of pair p has index k = p C + c in every list of choices, and is item
// k of the transports. We keep a plan Π_c for every pair and choice. Let L be T with these plans in place of optimal ones,
// so L ≥ T. Strategy iteration alternates two steps:
//
//     improve    find optimal plans for U, which gives T U                                            (improve_pairs)
//     evaluate   U = the fixed point of L: a finite game over lines and choices, without transports
//
// The second is solved by policy iteration for the adversary (Hoffman & Karp 1966): `improve_choices` finds the best
// choices within given lines, `improve_lines` the best lines; values in between are linear systems.
//
// *The lazy maximum.* The plans of the last table give an upper bound on every δ_c, which evaluation has already computed.
// So the lines of a pair are solved in the order of their bounds until the next bound is not above the best line that is
// solved. This still gives T U, and L U = T U. Most transports are never solved again. Within a line, the potentials f, g
// of one transport between full rows bound all others from below, by <p, f> + <q, g>, so choices that cannot be the least
// are skipped.
//
// *Other marginals.* If the trees are those of other kernels, every tree first gets a plan for the present ones, optimal or
// not. It bounds δ_c as well as any.
//
// *One MDP with itself.* Where states of both sides are the same and equal states are at distance zero, mass in place
// gives better bases and smaller transports (staying.hpp).
//
// A sweep writes only to the entries of its pairs, so results do not depend on the number of threads.
#pragma once

#include "transports.hpp"

namespace engine {

/// The costs and lines of the game.
struct Rules {
    View<double> base;  // (N*C,) (1-γ) times the cost of every choice
    View<Index> lines;  // (L + 1,) the first member of each line
    View<Index> members;  // the choices of all lines, one line after another, in 0 … C - 1
    double discount;
    bool hollow;  // both sides have the same states, and equal states are at distance zero in the first table

    Index n_lines() const { return Index(lines.size()) - 1; }
    View<Index> line(Index n) const { return members.subspan(lines[n], lines[n + 1] - lines[n]); }
};

/// The moves of both sides.
struct Moves {
    Out<double> delta;  // (N*C,) δ of every choice, or an upper bound on it
    Out<Index> line;  // (N,) the adversary's line
    Out<Index> chosen;  // (N + 1,) the plan that each pair uses, p C + c; the last entry is not used here
    Out<double> value;  // (N,) T U, as computed by the last improvement

    Index n_pairs() const { return Index(line.size()); }
    Index n_choices() const { return Index(delta.size() / line.size()); }
};

/// The pairs that the edges of all trees lead to.
struct Targets {
    View<Index> numbers;  // (n_X*n_Y,) the number of every pair of states
    Out<std::int32_t> target;  // (E,) the number of the pair that each edge leads to
};

/// A contiguous copy of the plans in use, in single precision, and their residuals; empty for small problems.
///
/// Pair p has the entries first[p] … first[p + 1] - 1, enough for the longest of its plans; unused ones have no flow.
struct Selected {
    View<Index> first;
    Out<std::int32_t> target;
    Out<float> flow;
    Out<float> residual;  // (N,) or more: L u - u
};

/// A game with the plans of all choices and the moves of both sides.
struct Game {
    Items items;  // (N*C,)
    AnyTrees trees;
    Rules rules;
    Moves moves;
    Targets targets;
    Selected selected;
};

/// What an improvement has done.
struct Improved : Swept {
    Index solved = 0;  // number of transports that were solved

    void add(const Improved& more) {
        Swept::add(more);
        solved += more.solved;
    }
};

/// The least and the largest change.
struct Change {
    double low = INF, high = -INF;
};

/// T W at all pairs, with optimal plans for all lines that can be the worst, and the moves that attain it. Reduced costs
/// above -price count as zero; if it is infinite, the plans stay what they are (first bases, if there were none).
Improved improve_pairs(Team& team, const Game& game, View<double> W, Basis basis, double price);

/// Copy the plans that all pairs use.
void select_plans(Team& team, const Game& game);

/// The best moves of both sides for the table u and the present plans; present moves stay unless `tie` worse. Returns the
/// least and the largest entry of L u - u. Writes δ of every choice to the moves, and updates the selected plans.
Change improve_lines(Team& team, const Game& game, View<double> u, double tie);

/// The best choices within the present lines for the table u; returns how much the best of them gains. Updates the
/// selected plans.
double improve_choices(Team& team, const Game& game, View<double> u, double tie);

}  // namespace engine
