// Network simplex for one small optimal transport problem, with warm starts and potentials: the innermost loop.
//
//     min Σ_ij π_ij C_ij    s.t.  Σ_j π_ij = p_i,  Σ_i π_ij = q_j,  π ≥ 0                (a × b cells, p, q > 0)
//
// A basis is a spanning tree on N = a + b nodes: rows are nodes 0 … a-1, columns are nodes a … N-1. Every node except
// the root stores its parent and the flow on the edge to it. The potentials satisfy pot[i] + pot[a+j] = C_ij on tree
// edges. A pivot adds a cell with negative reduced cost, pushes flow around the cycle that it closes, and removes an
// edge whose flow has become zero. Edges with zero flow always point to the root (the tree is *strongly feasible*,
// Cunningham 1976; the leaving edge is the last blocking one seen from the apex along the cycle), so degenerate pivots
// cannot cycle.
//
// During pivots the nodes are threaded in preorder (Glover, Klingman and Barr; as in LEMON): every node knows the next
// and the previous node, the last node of its subtree and the subtree's size. Moving a subtree changes the nodes between
// its old and its new top, and the cycle. Potentials are updated on the smaller side of the cut only.
//
// Between two solves of the same transport only the *edge list* is kept (Tree): child[k], parent[k], flow[k] for
// k = 0 … N-2, with every node after its parent, so that the root is parent[0]. In this form, potentials take one forward
// pass and flows for new marginals one backward pass, and the plan has only N - 1 cells, which makes policy evaluation
// cheap.
//
// *New marginals.* If only p and q have changed, the old tree is dual feasible, and the dual simplex (`repair`) needs few
// pivots: the edge that lacks the most flow leaves, and the cell of least reduced cost across the cut enters.
#pragma once

#include <memory>

#include "lanes.hpp"
#include "parallel.hpp"

namespace engine {

using Node = std::uint32_t;

constexpr Index NO_NODE = -1;

/// Number of rows priced per pivot: with fewer the cells are worse, with more pricing takes longer than the pivot.
constexpr Index BLOCK_ROWS = 4;

/// Pivots times nodes between two computations of the potentials from scratch.
constexpr Index WORK_BETWEEN_REFRESHES = 1'000'000;

/// Negative flows smaller than this are rounding errors, not infeasibility.
constexpr double TINY_FLOW = 1e-15;

/// A potential lower than that of any node, for nodes that must not be chosen.
constexpr double NOWHERE = -1e300;

/// The costs of one transport as part of a larger table: C_ij = entries[i * stride + j].
struct Costs {
    const double* entries;
    Index stride;
    Index a, b;  // rows and columns

    Index nodes() const { return a + b; }
    const double* row(Index i) const { return entries + i * stride; }
};

/// The two distributions of a transport.
struct Marginals {
    const double* p;
    const double* q;
};

/// The edge list of a basis, parents first; Int is the type in which nodes are stored.
template <class Int> struct Tree {
    Int* child;
    Int* parent;
    double* flow;
    Index edges;  // a + b - 1
};

/// A node of a threaded tree. One record per node is faster than one array per field, because a pivot uses all fields of
/// few nodes.
struct Link {
    Node parent;  // the root is its own parent
    Node next, previous;  // in cyclic preorder
    Node last;  // of the subtree
};

/// A threaded tree: what a pivot changes, in the primal and in the dual simplex.
struct Threaded {
    Link* t;
    std::int32_t* size;  // of the subtrees
    double* flow;  // on the edges to the parents
};

/// A pivot: the cell of nodes (i, j) enters, and an edge of the cycle that it closes leaves.
struct Cycle {
    Node i, j;
    Node apex;  // lowest common ancestor of i and j
    Node out;  // lower node of the leaving edge
    bool on_i;  // whether that edge is between i and the apex
};

/// How a simplex run ended.
struct Pivoted {
    Index pivots;
    bool done;  // optimal, or feasible
};

/// Working memory of one thread for transports with up to N nodes; every array has N entries.
struct Workspace : Threaded {
    double* pot;  // potentials
    double* net;  // remaining marginals, or masked potentials
    Node* order;  // a list of nodes
    std::int32_t* block;  // another list of nodes
    Watch* watch;

    Workspace(Index nodes, Watch& watch_) : watch(&watch_) {
        const Index n = (nodes + 7) / 8 * 8;
        memory_.reset(new char[std::size_t(n) * (sizeof(Link) + 3 * sizeof(double) + 3 * sizeof(Node)) + CACHE_LINE]);
        char* free = memory_.get();
        free += (CACHE_LINE - reinterpret_cast<std::uintptr_t>(free) % CACHE_LINE) % CACHE_LINE;
        const auto take = [&]<class T>(T*& field) { field = reinterpret_cast<T*>(free), free += n * Index(sizeof(T)); };
        take(t), take(flow), take(pot), take(net), take(size), take(order), take(block);
    }

  private:
    static constexpr std::size_t CACHE_LINE = 64;
    std::unique_ptr<char[]> memory_;
};

// --- first bases -------------------------------------------------------------------------------------------------

/// Build a first basis by the northwest corner rule along the orders `rows` (a) and `cols` (b).
///
/// The plan is comonotone in the two orders. It is optimal if the cost is a convex function of the difference of two keys
/// and both orders sort them. On a tie the next *row* is attached, so that an empty edge points to the root.
template <class Int>
void northwest_corner(Marginals m, const Index* rows, const Index* cols, Index a, Index b, Tree<Int> tree) {
    Index i = 0, j = 0;
    double left = m.p[rows[0]], right = m.q[cols[0]];
    tree.child[0] = Int(a + cols[0]), tree.parent[0] = Int(rows[0]);
    for (Index k = 0; k < a + b - 1; ++k) {
        const bool last_row = i == a - 1, last_col = j == b - 1;
        // At the end both are equal up to rounding; the child's own mass is positive.
        const double flow = last_row && last_col ? (tree.child[k] < a ? left : right)
                            : last_col           ? left
                            : last_row           ? right
                                                 : std::min(left, right);
        tree.flow[k] = std::max(flow, 0.0);
        if (k == a + b - 2) break;
        if (last_col || (!last_row && left <= right)) {
            right -= left;
            left = m.p[rows[++i]];
            tree.child[k + 1] = Int(rows[i]), tree.parent[k + 1] = Int(a + cols[j]);
        } else {
            left -= right;
            right = m.q[cols[++j]];
            tree.child[k + 1] = Int(a + cols[j]), tree.parent[k + 1] = Int(rows[i]);
        }
    }
}

/// Build a first basis by assigning each row to its cheapest open columns.
///
/// The parent of a row is the last column that it uses, the parent of a column is the row that fills it, and the last row
/// is the root. On a tie the column closes and the row takes one more, so that an empty edge points to the root. The edge
/// list is written backward, because parents are found later.
template <class Int> void greedy(const Costs& c, Marginals m, Tree<Int> tree, Workspace& w) {
    const Index a = c.a, b = c.b;
    double* left = w.net;
    std::int32_t* open = w.block;
    Index k = a + b - 2, n_open = b;
    for (Index j = 0; j < b; ++j) left[j] = m.q[j], open[j] = std::int32_t(j);
    for (Index i = 0; i < a - 1; ++i) {
        double mass = m.p[i];
        const double* line = c.row(i);
        while (true) {
            Index at = 0;
            double least = INF;
            for (Index o = 0; o < n_open; ++o)
                if (line[open[o]] < least) at = o, least = line[open[o]];
            w.watch->spend(n_open);
            const Index j = open[at];
            if (mass < left[j] || n_open == 1) {
                tree.child[k] = Int(i), tree.parent[k] = Int(a + j), tree.flow[k] = mass;
                left[j] = std::max(left[j] - mass, 0.0);
                --k;
                break;
            }
            tree.child[k] = Int(a + j), tree.parent[k] = Int(i), tree.flow[k] = left[j];
            mass -= left[j];
            --k, --n_open;
            open[at] = open[n_open];
        }
    }
    for (Index o = 0; o < n_open; ++o)
        tree.child[o] = Int(a + open[o]), tree.parent[o] = Int(a - 1), tree.flow[o] = left[open[o]];
    if (n_open == 1) tree.flow[0] = m.p[a - 1];  // equal up to rounding, and positive
}

// --- the edge list -----------------------------------------------------------------------------------------------

/// Row and column of the edge between two nodes (columns have larger numbers; no branch).
ALWAYS_INLINE std::pair<Index, Index> cell_of(Index u, Index v, Index a) { return {std::min(u, v), std::max(u, v) - a}; }

/// The cost of the edge between two nodes.
ALWAYS_INLINE double cost_of(const Costs& c, Index u, Index v) {
    return c.entries[std::min(u, v) * (c.stride - 1) + (u + v - c.a)];  // the larger node is u + v minus the smaller one
}

/// Compute the potentials, pot[i] + pot[a+j] = C_ij on all edges, with zero at the root.
template <class Int> ALWAYS_INLINE void tree_potentials(Tree<Int> tree, const Costs& c, double* pot) {
    pot[tree.parent[0]] = 0.0;
    for (Index k = 0; k < tree.edges; ++k)
        pot[tree.child[k]] = cost_of(c, tree.child[k], tree.parent[k]) - pot[tree.parent[k]];
}

/// Σ π_ij C_ij over the edges of the tree.
template <class Int> ALWAYS_INLINE double tree_value(Tree<Int> tree, const Costs& c) {
    double total = 0.0;
    for (Index k = 0; k < tree.edges; ++k) total += tree.flow[k] * cost_of(c, tree.child[k], tree.parent[k]);
    return total;
}

/// What had to be changed to make flows nonnegative.
struct Shortage {
    double below;  // sum of the negative flows
    double clipped;  // absolute sum of those above -TINY_FLOW, which are set to zero
};

/// Compute the flows of the tree for (new) marginals, leaves first.
template <class Int>
ALWAYS_INLINE Shortage tree_flows(Tree<Int> tree, Marginals m, Index a, Index b, double* net) {
    Shortage found{0.0, 0.0};
    for (Index i = 0; i < a; ++i) net[i] = m.p[i];
    for (Index j = 0; j < b; ++j) net[a + j] = -m.q[j];
    for (Index k = tree.edges - 1; k >= 0; --k) {
        const Index v = tree.child[k];
        net[tree.parent[k]] += net[v];
        const double amount = negate_if(v >= a, net[v]);
        double flow = amount;
        if (-TINY_FLOW < amount && amount < 0.0) flow = 0.0, found.clipped -= amount;
        tree.flow[k] = flow;
        found.below += std::min(flow, 0.0);
    }
    return found;
}

/// Recompute the flows of the tree, which removes the rounding errors of many pivots. Remaining negative flows are set to
/// zero. Returns the total mass by which this changes the plan.
template <class Int> ALWAYS_INLINE double true_flows(Tree<Int> tree, Marginals m, Index a, Index b, double* net) {
    const auto [below, clipped] = tree_flows(tree, m, a, b, net);
    if (below < 0.0)
        for (Index k = 0; k < tree.edges; ++k) tree.flow[k] = std::max(tree.flow[k], 0.0);
    return clipped - below;
}

/// Convert an edge list (parents first) to a threaded tree; returns its root. `block` holds the next free position in
/// preorder within each subtree.
template <class Int> ALWAYS_INLINE Node unpack(Tree<Int> tree, Workspace& w) {
    const Index edges = tree.edges;
    const Node root = Node(tree.parent[0]);
    for (Index k = 0; k <= edges; ++k) w.size[k] = 1;
    for (Index k = edges - 1; k >= 0; --k) w.size[tree.parent[k]] += w.size[tree.child[k]];
    w.t[root].parent = root, w.t[root].last = Node(edges), w.flow[root] = 0.0;
    w.order[0] = root, w.block[root] = 1;
    for (Index k = 0; k < edges; ++k) {
        const Node v = Node(tree.child[k]), u = Node(tree.parent[k]);
        const std::int32_t at = w.block[u];
        w.t[v].parent = u, w.t[v].last = Node(at + w.size[v] - 1), w.flow[v] = tree.flow[k];
        w.order[at] = v;
        w.block[u] = at + w.size[v], w.block[v] = at + 1;
    }
    Node before = w.order[edges];
    for (Index k = 0; k <= edges; ++k) {
        const Node v = w.order[k];
        w.t[before].next = v, w.t[v].previous = before, w.t[v].last = w.order[w.t[v].last];
        before = v;
    }
    return root;
}

/// Convert the threaded tree to an edge list in preorder.
template <class Int> ALWAYS_INLINE void pack(Tree<Int> tree, const Threaded& w, Node root) {
    Node v = root;
    for (Index k = 0; k < tree.edges; ++k) {
        v = w.t[v].next;
        tree.child[k] = Int(v), tree.parent[k] = Int(w.t[v].parent), tree.flow[k] = w.flow[v];
    }
}

// --- pricing -----------------------------------------------------------------------------------------------------

/// A cell that may enter, the row to continue from, and how many rows were priced; the row is NO_NODE if the whole table
/// has no such cell.
struct Entering {
    Index row, col, next, priced;
};

/// Find a cell with reduced cost below -tol: the best one of a few rows from `start` on.
ALWAYS_INLINE Entering entering_cell(const Costs& c, const double* pot, Index start, double tol) {
    double least = -tol, best = 0.0;
    Index row = NO_NODE, i = start, seen = 0;
    while (seen < c.a) {
        if (any_below(c.row(i), pot + c.a, c.b, pot[i] + least)) {
            const double found = least_of(c.row(i), pot + c.a, c.b);
            if (found - pot[i] < least) least = found - pot[i], best = found, row = i;
        }
        i = i + 1 < c.a ? i + 1 : 0;
        if (++seen >= BLOCK_ROWS && row != NO_NODE) break;
    }
    const Index col = row == NO_NODE ? NO_NODE : first_at_most(c.row(row), pot + c.a, c.b, best);
    return {col == NO_NODE ? NO_NODE : row, col, i, seen};
}

/// Whether no reduced cost is below -tol for the potentials of a tree, which are left in `pot`.
template <class Int> ALWAYS_INLINE bool is_priced_out(const Costs& c, Tree<Int> tree, double* pot, double tol) {
    tree_potentials(tree, c, pot);
    return entering_cell(c, pot, 0, tol).row == NO_NODE;
}

// --- pivots ------------------------------------------------------------------------------------------------------

/// The lowest common ancestor of two nodes. Selections take the place of an unpredictable branch.
ALWAYS_INLINE Node apex_of(Node u, Node v, const Threaded& w) {
    while (u != v) {
        const bool first = w.size[u] < w.size[v];
        const Node up = w.t[first ? u : v].parent;
        u = first ? up : u, v = first ? v : up;
    }
    return u;
}

/// Find the cycle for flow from row node `i` to column node `j`, and the edge that becomes empty first.
///
/// On the side of i the edges above rows lose flow, on the side of j those above columns. A tie is resolved in favor of
/// the last blocking edge on the path from the apex down to i, across to j, and back up.
ALWAYS_INLINE Cycle find_cycle(Node i, Node j, Index a, const Threaded& w) {
    double low_i = INF, low_j = INF;
    Node out_i = i, out_j = j, u = i, v = j;
    while (u != v) {  // the smaller subtree is not an ancestor of the other node
        const bool on_i = w.size[u] < w.size[v];
        const Node node = on_i ? u : v;
        const double left = (node < a) == on_i ? w.flow[node] : INF;
        const bool less_i = on_i & (left < low_i), less_j = !on_i & (left <= low_j);
        low_i = less_i ? left : low_i, out_i = less_i ? node : out_i;
        low_j = less_j ? left : low_j, out_j = less_j ? node : out_j;
        const Node up = w.t[node].parent;
        u = on_i ? up : u, v = on_i ? v : up;
    }
    const bool on_i = low_i < low_j;
    return {i, j, u, on_i ? out_i : out_j, on_i};
}

/// Change the flow on the way from a node up to the apex, with alternating signs.
ALWAYS_INLINE void shift_flow(Node node, Node apex, double amount, Threaded& w) {
    for (; node != apex; node = w.t[node].parent) w.flow[node] -= amount, amount = -amount;
}

ALWAYS_INLINE void join(Node u, Node v, Link* t) { t[u].next = v, t[v].previous = u; }

/// Change flow and subtree sizes on the way from a node up to the apex.
ALWAYS_INLINE void carry(Node node, Node apex, double amount, std::int32_t by, Index a, Threaded& w) {
    const bool row = node < a;
    for (; node != apex; node = w.t[node].parent) {
        w.flow[node] += negate_if((node < a) == row, amount);
        w.size[node] += by;
    }
}

/// Subtrees around `node` that ended with the node `old` end with `fresh`.
ALWAYS_INLINE void end_with(Node node, Node old, Node fresh, Link* t) {
    while (t[node].last == old) {
        t[node].last = fresh;
        if (t[node].parent == node) break;
        node = t[node].parent;
    }
}

/// Turn the subtree of `top` upside down, so that its root is `bottom`, below `new_parent`; returns its last node.
ALWAYS_INLINE Node turn(Node top, Node bottom, Node new_parent, double new_flow, Threaded& w) {
    Link* t = w.t;
    const std::int32_t total = w.size[top];
    Node node = bottom, parent = new_parent, before = t[bottom].previous, last = t[bottom].last, tail = last;
    Node after = t[last].next;
    double carried = new_flow;
    std::int32_t inner = 0;
    while (true) {
        const Node up = t[node].parent;
        std::swap(w.flow[node], carried);
        const std::int32_t size = w.size[node];
        w.size[node] = total - inner, inner = size;
        t[node].parent = parent;
        if (node == top) break;
        const Node before_up = t[up].previous;
        Node end = t[up].last, after_up = after;
        if (end == last) end = before;
        else after_up = t[end].next, join(before, after, t);
        last = t[up].last;
        join(tail, up, t);
        parent = node, node = up, tail = end, before = before_up, after = after_up;
    }
    for (; node != bottom; node = t[node].parent) t[node].last = tail;
    t[bottom].last = tail;
    return tail;
}

/// Push flow around a cycle, replace the leaving edge, and update the potentials on the smaller side of the cut.
ALWAYS_INLINE void pivot(const Cycle& cycle, double amount, const Costs& c, Workspace& w) {
    const auto [i, j, apex, out, on_i] = cycle;
    Link* t = w.t;
    double* pot = w.pot;
    const Index a = c.a;
    Index n = w.size[out];
    const double reduced = c.row(i)[j - a] - pot[i] - pot[j];
    const Node bottom = on_i ? i : j, new_parent = on_i ? j : i;
    const Node before = t[out].previous, old_parent = t[out].parent;
    Node last = t[out].last;
    shift_flow(bottom, old_parent, amount, w);
    carry(old_parent, apex, (old_parent < a) == (bottom < a) ? amount : -amount, std::int32_t(-n), a, w);
    carry(new_parent, apex, amount, std::int32_t(n), a, w);
    join(before, t[last].next, t);
    end_with(old_parent, last, before, t);
    last = turn(out, bottom, new_parent, amount, w);
    join(last, t[new_parent].next, t);
    join(new_parent, bottom, t);
    end_with(new_parent, new_parent, last, t);
    Node v = bottom, u = last;
    double up = on_i ? reduced : -reduced;
    if (2 * n > c.nodes()) v = t[last].next, u = new_parent, up = -up, n = c.nodes() - n;
    for (Index k = 0; k < n / 2; ++k) {
        pot[v] += negate_if(v >= a, up);
        pot[u] += negate_if(u >= a, up);
        v = t[v].next, u = t[u].previous;
    }
    if (n % 2) pot[v] += negate_if(v >= a, up);
}

// --- the primal simplex ------------------------------------------------------------------------------------------

/// Pivot until no reduced cost is below -tol for freshly computed potentials, or `max_pivots` are done.
template <class Int> Pivoted simplex(const Costs& c, Tree<Int> tree, Workspace& w, double tol, Index max_pivots) {
    tree_potentials(tree, c, w.pot);
    if (c.a == 1 || c.b == 1) return {0, true};
    Index pivots = 0, at = 0;
    bool fresh = true;
    Node root = 0;
    while (true) {
        const Entering entering = entering_cell(c, w.pot, at, tol);
        at = entering.next;
        w.watch->spend(entering.priced * c.b);
        if (entering.row == NO_NODE) {
            if (pivots > 0) pack(tree, w, root);
            if (fresh) return {pivots, true};
            tree_potentials(tree, c, w.pot);
            fresh = true;
            continue;
        }
        if (pivots == 0) root = unpack(tree, w);
        if (pivots == max_pivots) break;
        const Cycle cycle = find_cycle(Node(entering.row), Node(c.a + entering.col), c.a, w);
        pivot(cycle, w.flow[cycle.out], c, w);
        ++pivots, fresh = false;
    }
    pack(tree, w, root);
    tree_potentials(tree, c, w.pot);
    return {pivots, false};
}

/// Run the simplex to optimality, within a number of pivots that no sound transport needs.
template <class Int> ALWAYS_INLINE Pivoted optimize(const Costs& c, Tree<Int> tree, Workspace& w, double tol) {
    const Index nodes = c.nodes();
    Pivoted found{0, false};
    while (!found.done && found.pivots < 50 * nodes * nodes) {
        const Pivoted more = simplex(c, tree, w, tol, WORK_BETWEEN_REFRESHES / nodes + 1);
        found = {found.pivots + more.pivots, more.done};
        w.watch->spend((more.pivots + 1) * nodes);
    }
    return found;
}

// --- new marginals: the dual simplex -----------------------------------------------------------------------------

/// Squared missing flow divided by the size of the smaller side of the cut (dual steepest edge).
ALWAYS_INLINE double lack_of(double flow, Index size, Index nodes) {
    const double lack = std::min(flow + TINY_FLOW, 0.0);
    return lack * lack / double(std::max<Index>(std::min(size, nodes - size), 1));
}

/// The lower node of the edge that leaves; NO_NODE if no flow is negative.
inline Index lacking_edge(const Threaded& w, Index nodes) {
    double most = 0.0;
    Index at = NO_NODE;
    for (Index v = 0; v < nodes; ++v) {
        const double lack = lack_of(w.flow[v], w.size[v], nodes);
        if (lack > most) most = lack, at = v;
    }
    return at;
}

/// The cell (i, j) of least reduced cost that can replace the flow of the edge above `out`; i is NO_NODE if there is none.
///
/// Only the lines (rows or columns) of the smaller side of the cut are scanned, and the nodes of that side are masked.
inline std::pair<Index, Index> crossing_cell(Node out, const Costs& c, const Costs& columns, Workspace& w) {
    const Index a = c.a, nodes = c.nodes();
    Index n = w.size[out];
    Node v = out;
    bool rows = out >= a;
    if (2 * n > nodes) n = nodes - n, v = w.t[w.t[out].last].next, rows = !rows;
    double* masked = w.net;
    std::copy(w.pot, w.pot + nodes, masked);
    for (Index k = 0; k < n; ++k) w.order[k] = v, masked[v] = NOWHERE, v = w.t[v].next;
    const Costs& lines = rows ? c : columns;
    const Index lo = rows ? 0 : a, hi = rows ? a : nodes, first = rows ? a : 0;
    double least = -NOWHERE / 2, value = 0.0;
    Index at = NO_NODE;
    for (Index k = 0; k < n; ++k) {
        const Index u = w.order[k];
        if (u < lo || u >= hi || !any_below(lines.row(u - lo), masked + first, lines.b, w.pot[u] + least)) continue;
        const double found = least_of(lines.row(u - lo), masked + first, lines.b);
        if (found - w.pot[u] < least) least = found - w.pot[u], value = found, at = u;
    }
    w.watch->spend(n * lines.b);
    const Index other = at == NO_NODE ? NO_NODE : first_at_most(lines.row(at - lo), masked + first, lines.b, value);
    if (other == NO_NODE) return {NO_NODE, NO_NODE};
    return rows ? std::pair{at, first + other} : std::pair{first + other, at};
}

/// Make a tree with negative flows feasible by the dual simplex, keeping its potentials nearly optimal. `columns` are the
/// costs by columns. Gives up when a fresh start would be faster.
template <class Int> Pivoted repair(const Costs& c, const Costs& columns, Tree<Int> tree, Workspace& w) {
    const Index nodes = c.nodes();
    tree_potentials(tree, c, w.pot);
    const Node root = unpack(tree, w);
    for (Index pivots = 0; pivots < 3 * nodes; ++pivots) {
        const Index lacking = lacking_edge(w, nodes);
        if (lacking == NO_NODE) {
            pack(tree, w, root);
            for (Index k = 0; k < tree.edges; ++k) tree.flow[k] = std::max(tree.flow[k], 0.0);
            return {pivots, true};
        }
        const Node out = Node(lacking);
        const auto [i, j] = crossing_cell(out, c, columns, w);
        if (i == NO_NODE) break;
        pivot({Node(i), Node(j), apex_of(Node(i), Node(j), w), out, out >= c.a}, -w.flow[out], c, w);
    }
    return {3 * nodes, false};
}

// Compiled once for each type of edges, in simplex.cpp.
extern template void northwest_corner(Marginals, const Index*, const Index*, Index, Index, Tree<std::int8_t>);
extern template void northwest_corner(Marginals, const Index*, const Index*, Index, Index, Tree<std::int16_t>);
extern template void northwest_corner(Marginals, const Index*, const Index*, Index, Index, Tree<std::int32_t>);
extern template void greedy(const Costs&, Marginals, Tree<std::int8_t>, Workspace&);
extern template void greedy(const Costs&, Marginals, Tree<std::int16_t>, Workspace&);
extern template void greedy(const Costs&, Marginals, Tree<std::int32_t>, Workspace&);
extern template Pivoted simplex(const Costs&, Tree<std::int8_t>, Workspace&, double, Index);
extern template Pivoted simplex(const Costs&, Tree<std::int16_t>, Workspace&, double, Index);
extern template Pivoted simplex(const Costs&, Tree<std::int32_t>, Workspace&, double, Index);
extern template Pivoted repair(const Costs&, const Costs&, Tree<std::int8_t>, Workspace&);
extern template Pivoted repair(const Costs&, const Costs&, Tree<std::int16_t>, Workspace&);
extern template Pivoted repair(const Costs&, const Costs&, Tree<std::int32_t>, Workspace&);

}  // namespace engine
