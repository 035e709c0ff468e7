// Many optimal transports over one cost table; the optimal basis of each is kept from sweep to sweep.
//
// An *item* is a pair (row i of X, row j of Y), and its transport
//
//     OT_W(P_X(·|i), P_Y(·|j)) = min over couplings π of <π, W>
//
// takes its costs from a table W over pairs of states that all items share. For two chains the rows are the states and
// the items are the pairs of states (all of them, or those that can be reached from the starts). The code does not depend
// on this: rows can also be state-action pairs or the steps of a horizon.
//
// For each item we keep its spanning tree (simplex.hpp), which has a + b - 1 edges for a and b successors. When there are
// very many items, only the edges are stored (*narrow* trees): the flows follow from the marginals, and the position of a
// tree in the list follows from the numbers of successors. Notation:
//
//     z = i m_Y + j         flat row pair of an item, m_Y rows of Y
//     p (a), q (b)          the two distributions, on their supports `rows` and `cols`
//     W, v (n_X*n_Y)        tables over pairs of states, flat; n_Y their number of columns
#pragma once

#include <optional>
#include <variant>

#include "simplex.hpp"

namespace engine {

/// The list of transports.
struct Items {
    Rows x, y;
    Index n_y;  // columns of the tables
    View<Index> listed;  // flat row pairs in ascending order; empty for all of them
    View<Index> order_x, order_y;  // in which order a first basis takes the entries of each row: positions within the row

    Index size() const { return listed.empty() ? x.size() * y.size() : Index(listed.size()); }

    /// The two rows of item k.
    ALWAYS_INLINE std::pair<Index, Index> rows_of(Index k) const {
        const Index z = listed.empty() ? k : listed[k];
        return {z / y.size(), z % y.size()};
    }
};

/// The edge lists of all items, one after another. Int is the type in which nodes are stored.
template <class Int> struct Trees {
    View<Index> at;  // the first edge of each item, and the end; empty for narrow trees
    Out<Int> child, parent;
    Out<double> flow;  // empty for narrow trees

    bool narrow() const { return at.empty(); }

    /// The first edge of item k. Narrow trees compute it: Σ (a + b - 1) over all pairs of rows before this one.
    ALWAYS_INLINE Index first_edge(const Items& items, Index k) const {
        if (!at.empty()) return at[k];
        const View<Index> x = items.x.first, y = items.y.first;
        const Index m_y = items.y.size(), i = k / m_y, j = k % m_y;
        return m_y * (x[i] - i) + i * Index(items.y.states.size()) + j * (x[i + 1] - x[i] - 1) + y[j];
    }

    /// The tree of item k, which has this many edges; a narrow tree uses `spare` for its flows.
    ALWAYS_INLINE Tree<Int> tree(const Items& items, Index k, Index edges, double* spare) const {
        const Index first = first_edge(items, k);
        return {child.data() + first, parent.data() + first, flow.empty() ? spare : flow.data() + first, edges};
    }
};

/// The plans of narrow trees in single precision, edge by edge; empty where they are not kept.
struct SinglePlans {
    Out<std::int32_t> target;  // flat pairs of states; empty if they are read from the trees
    Out<float> flow;
};

using AnyTrees = std::variant<Trees<std::int8_t>, Trees<std::int16_t>, Trees<std::int32_t>>;

/// A list of transports and their trees, which belong to the caller.
struct Transports {
    Items items;
    AnyTrees trees;
};

/// Typical upper bound on the cost of a unit of missing flow: entries are at most one, and transports differ by less.
constexpr double COST_OF_MISSING_FLOW = 0.1;

/// A tree whose negative flows sum to more than this is discarded, because a first basis is closer to the optimum.
constexpr double STALE = 0.05;

/// What a sweep can start from.
enum class Basis : int {
    NONE = 0,  // nothing: first bases are built
    OTHER = 1,  // trees for other marginals: they are repaired, or rebuilt where repair would take longer
    FEASIBLE = 2,  // trees that are feasible as they are
};

/// How accurately a sweep solves its transports.
struct Effort {
    Basis basis;
    double price;  // reduced costs above minus this count as zero; infinite for any plans, at once
    View<double> slack = {};  // how much negative flow the old tree of every item may have and still be kept; or empty
};

/// What a sweep has done.
struct Swept {
    Index pivots = 0;
    Index failed = 0;  // number of unsolved items
    double clipped = 0.0;  // largest mass that was moved to keep a plan nonnegative

    void add(const Swept& more) {
        pivots += more.pivots, failed += more.failed, clipped = std::max(clipped, more.clipped);
    }
};

/// Working memory of one thread for the transports of a list.
struct ItemScratch {
    Workspace simplex;
    std::vector<double> costs, transposed, flow;

    ItemScratch(Index longest_x, Index longest_y, Watch& watch)
        : simplex(longest_x + longest_y, watch), costs(longest_x * longest_y), flow(longest_x + longest_y) {}

    /// The costs by columns.
    Costs columns_of(const Costs& c) {
        transposed.resize(costs.size());
        for (Index i = 0; i < c.a; ++i)
            for (Index j = 0; j < c.b; ++j) transposed[j * c.a + i] = c.row(i)[j];
        return {transposed.data(), c.a, c.b, c.a};
    }
};

/// The table on the successors of two rows: the table itself if both rows are full, else a copy in `memory`.
ALWAYS_INLINE Costs costs_of(View<double> W, Index n_y, View<Index> rows, View<Index> cols, double* memory) {
    const Index a = Index(rows.size()), b = Index(cols.size());
    if (b == n_y && a * n_y == Index(W.size())) return {W.data(), n_y, a, b};
    for (Index s = 0; s < a; ++s) {
        const double* line = W.data() + rows[s] * n_y;
        for (Index t = 0; t < b; ++t) memory[s * b + t] = line[cols[t]];
    }
    return {memory, b, a, b};
}

/// The better of two bases that are cheap to build; the first one if it is optimal.
template <class Int>
ALWAYS_INLINE void first_basis(
    const Costs& c, Marginals m, const Index* order_p, const Index* order_q, Tree<Int> tree, Workspace& w, double price
) {
    northwest_corner(m, order_p, order_q, c.a, c.b, tree);
    if (is_priced_out(c, tree, w.pot, price)) return;
    const double value = tree_value(tree, c);
    greedy(c, m, tree, w);
    if (value <= tree_value(tree, c)) northwest_corner(m, order_p, order_q, c.a, c.b, tree);
}

/// Solve item k for the table W, starting from its tree, which becomes optimal; returns its value.
template <class Int>
ALWAYS_INLINE double solve_item(
    Index k, const Items& items, const Trees<Int>& trees, View<double> W, const Effort& effort, ItemScratch& scratch, Swept& swept
) {
    Workspace& w = scratch.simplex;
    const auto [i, j] = items.rows_of(k);
    const View<Index> rows = items.x.states_of(i), cols = items.y.states_of(j);
    const Marginals m{items.x.probabilities.data() + items.x.first[i], items.y.probabilities.data() + items.y.first[j]};
    const Costs c = costs_of(W, items.n_y, rows, cols, scratch.costs.data());
    const Tree<Int> tree = trees.tree(items, k, c.nodes() - 1, scratch.flow.data());
    if (effort.price == INF) {
        northwest_corner(m, items.order_x.data() + items.x.first[i], items.order_y.data() + items.y.first[j], c.a, c.b, tree);
        return tree_value(tree, c);
    }
    const double missing = effort.slack.empty() ? 0.0 : effort.slack[k];
    const double price = std::max(effort.price, COST_OF_MISSING_FLOW * missing);
    bool feasible = effort.basis == Basis::FEASIBLE, moved = false;
    if (feasible && trees.narrow()) true_flows(tree, m, c.a, c.b, w.net);
    if (effort.basis == Basis::OTHER) {
        const auto [below, clipped] = tree_flows(tree, m, c.a, c.b, w.net);
        feasible = below == 0.0;
        if (feasible) {
            swept.clipped = std::max(swept.clipped, clipped);
        } else if (-below <= missing && is_priced_out(c, tree, w.pot, price)) {
            return tree_value(tree, c);
        } else if (-below <= STALE) {
            const Pivoted repaired = repair(c, scratch.columns_of(c), tree, w);
            swept.pivots += repaired.pivots, feasible = moved = repaired.done;
        }
    }
    if (!feasible) first_basis(c, m, items.order_x.data() + items.x.first[i], items.order_y.data() + items.y.first[j], tree, w, price);
    const Pivoted found = optimize(c, tree, w, price);
    if (found.pivots > 0 || moved) swept.clipped = std::max(swept.clipped, true_flows(tree, m, c.a, c.b, w.net));
    swept.pivots += found.pivots, swept.failed += !found.done;
    return tree_value(tree, c);
}

/// values[k] = OT_W of the items lo … hi - 1; their trees become optimal.
template <class Int>
Swept solve_items(
    Index lo, Index hi, const Items& items, const Trees<Int>& trees, View<double> W, const Effort& effort, ItemScratch& scratch,
    Out<double> values
) {
    Swept swept;
    for (Index k = lo; k < hi; ++k) values[k] = solve_item(k, items, trees, W, effort, scratch, swept);
    return swept;
}

// --- all items, with all threads ---------------------------------------------------------------------------------

/// values[k] = OT_W of all items; their trees become optimal.
///
/// Narrow trees that are still optimal are left as they are. Of the others, the plans are written to `plans` (all plans,
/// unless the trees were feasible before).
Swept solve(
    Team& team, const Transports& transports, View<double> W, const Effort& effort, const SinglePlans& plans, Out<double> values
);

/// The pair of states that every edge leads to: its flat index or, if `numbers` are given, the number of that.
template <class Number>
void edge_targets(Team& team, const Transports& transports, View<Index> numbers, Out<Number> targets);

/// The flows of all edges of narrow trees and, if `targets` are wanted, the pairs of states that they lead to.
template <class Number> void narrow_plans(Team& team, const Transports& transports, Out<Number> targets, Out<double> flow);

/// by_x[i] += Σ m_k f_k and by_y[j] += Σ m_k g_k over the items k of rows (i, j), with potentials for the table W.
///
/// The tables have one column for every state; the potentials are extended off the supports by c-transforms.
void sum_potentials(Team& team, const Transports& transports, View<double> W, View<double> m, Out<double> by_x, Out<double> by_y);

/// The same sums on the stored entries (row, successor) only.
void sum_potentials_on_supports(
    Team& team, const Transports& transports, View<double> W, View<double> m, Out<double> by_x, Out<double> by_y
);

// --- single items ------------------------------------------------------------------------------------------------

/// The flows of item k, whose trees are narrow.
void item_flows(const Transports& transports, Index k, Out<double> flow);

/// Potentials f (n_X), g (n_Y) of item k for the table W, extended off the supports by c-transforms.
void item_potentials(const Transports& transports, Index k, View<double> W, Out<double> f, Out<double> g);

/// Edge lists that come from a file, item by item.
template <class Int> struct UncheckedTrees {
    View<Index> at;  // the first edge of each item, and the end: a + b - 1 edges for each
    View<Int> child, parent;
    View<double> flow;
};

/// What is wrong with a tree.
enum class Unfit : int { NOTHING = 0, EDGES = 1, FLOWS = 2 };

/// The first item whose tree is no spanning tree, or whose flows miss a marginal by more than `tolerance`.
template <class Int>
std::pair<Index, Unfit> first_unfit(const Items& items, const UncheckedTrees<Int>& trees, double tolerance, Watch& watch);

// --- one transport -----------------------------------------------------------------------------------------------

/// The solution of one transport; its tree and potentials belong to the caller.
struct Solution {
    double value;
    bool solved;
    double price;  // how far the least reduced cost is below zero
    double clipped;  // mass that was moved to keep the plan nonnegative
};

/// Solve one transport, starting from its tree, which becomes optimal; `pot` gets its potentials.
template <class Int>
Solution solve_one(const Costs& c, Marginals m, Tree<Int> tree, double price, Out<double> pot, Watch& watch);

}  // namespace engine
