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

using AnyTrees = std::variant<Trees<std::int8_t>, Trees<std::int16_t>, Trees<std::int32_t>>;

/// A list of transports and their trees, which belong to the caller.
struct Transports {
    Items items;
    AnyTrees trees;
};

}  // namespace engine
