// Mass in place: transports between two distributions on the same states.
//
// If the table W is a metric, some optimal plan leaves the mass min(p, q) in place (by the triangle inequality). Only the
// remaining mass moves, from *sources*, the states with p > q, to *sinks*, the states with q > p:
//
//     OT_W(p, q) = OT_W((p - q)⁺, (q - p)⁺)
//
// For full rows, this *reduced* transport has half of the nodes and a quarter of the cells. The tables of an iteration are
// metrics only in the limit, so it only serves to find good trees: a tree of the reduced transport, plus an edge (s, s)
// for every state s of both sides, is a tree of the original one (we call it *staying*), and the simplex continues from
// there over all cells.
//
// A state with equal mass on both sides (a *tie*) is neither a source nor a sink. Its row is attached to the column of
// least reduced cost by an edge without flow, so that the tree is strongly feasible (simplex.hpp).
#pragma once

#include "transports.hpp"

namespace engine {

/// The reduced transport is solved first if it has at most this share of the nodes,
constexpr double MAX_SHARE_OF_NODES = 0.75;

/// and if the original one has at least so many cells.
constexpr Index MIN_CELLS_TO_REDUCE = 64;

/// A transport with its tree.
template <class Int> struct Item {
    View<Index> rows, cols;  // the supports, ascending
    Marginals m;
    Tree<Int> tree;

    Index a() const { return Index(rows.size()); }
    Index b() const { return Index(cols.size()); }
};

/// Item k of a list.
template <class Int> ALWAYS_INLINE Item<Int> item_of(Index k, const Items& items, const Trees<Int>& trees) {
    const auto [i, j] = items.rows_of(k);
    const View<Index> rows = items.x.states_of(i), cols = items.y.states_of(j);
    const Marginals m{items.x.probabilities.data() + items.x.first[i], items.y.probabilities.data() + items.y.first[j]};
    return {rows, cols, m, trees.tree(items, k, Index(rows.size() + cols.size()) - 1, nullptr)};
}

/// Call visit(i, j) for every state rows[i] = cols[j] of both supports.
template <class Visit> ALWAYS_INLINE void for_common_states(View<Index> rows, View<Index> cols, Visit&& visit) {
    const Index a = Index(rows.size()), b = Index(cols.size());
    for (Index i = 0, j = 0; i < a && j < b;) {
        const Index s = rows[i], t = cols[j];
        if (s == t) visit(i, j);
        i += s <= t, j += t <= s;
    }
}

/// The reduced transport of an item, in the working memory of one thread. Sources and sinks are numbered consecutively.
template <class Int> class Reduced {
  public:
    /// For transports of up to a rows and b columns.
    Reduced(Index a, Index b)
        : rows_(a + 1), cols_(b + 1), source_(a + 1), sink_(b + 1), p_(a + 1), q_(b + 1), node_p_(a + 1), node_q_(b + 1),
          child_(a + b), parent_(a + b), flow_(a + b), costs_(a * b) {}

    /// Build a first basis: common mass stays, the remaining mass goes row by row to the nearest sinks.
    ///
    /// Returns whether a basis was built: not if nothing remains, or only rounding errors.
    bool first_basis(const Item<Int>& item, View<double> W, Index n_y, Workspace& w) {
        split_mass(item);
        if (m_ == 0 || n_ == 0) return stay(item);
        const Costs c = costs(W, n_y);
        greedy(c, {p_.data(), q_.data()}, tree(), w);
        const Index k = expand(item);
        if (ties_ > 0) attach_ties(item, c, k, W, n_y, w);
        return true;
    }

    /// Improve a staying tree by solving the reduced transport, where that is much smaller.
    Swept solve(const Item<Int>& item, View<double> W, Index n_y, Workspace& w, double price) {
        split_mass(item);
        const bool is_small = double(m_ + n_) <= MAX_SHARE_OF_NODES * double(item.a() + item.b());
        if (ties_ > 0 || std::min(m_, n_) < 2 || !is_small || !contract(item)) return {};
        const Pivoted found = optimize(costs(W, n_y), tree(), w, price);
        expand(item);
        return {found.pivots, 0, true_flows(item.tree, item.m, item.a(), item.b(), w.net)};
    }

  private:
    Index m_ = 0, n_ = 0, ties_ = 0;  // numbers of sources, sinks and ties
    std::vector<Index> rows_, cols_;  // the states of the sources and sinks
    std::vector<Index> source_, sink_;  // the number of every row among the sources (NO_NODE if it is none), of every column
    std::vector<double> p_, q_;  // the mass that leaves each source, and that each sink receives
    std::vector<Int> node_p_, node_q_;  // their nodes in the original tree
    std::vector<Int> child_, parent_;
    std::vector<double> flow_, costs_;

    Tree<Int> tree() { return {child_.data(), parent_.data(), flow_.data(), m_ + n_ - 1}; }

    /// The costs of the reduced transport.
    Costs costs(View<double> W, Index n_y) {
        double* to = costs_.data();
        for (Index s = 0; s < m_; ++s) {
            const double* line = W.data() + rows_[s] * n_y;
            for (Index t = 0; t < n_; ++t) *to++ = line[cols_[t]];
        }
        return {costs_.data(), n_, m_, n_};
    }

    /// Find sources, sinks and ties. Every state is written as both; a place that does not count is overwritten.
    void split_mass(const Item<Int>& item) {
        const Index a = item.a(), b = item.b();
        Index i = 0, j = 0, m = 0, n = 0, ties = 0;
        while (i < a || j < b) {
            const bool no_col = j == b || (i < a && item.rows[i] < item.cols[j]);
            const bool no_row = i == a || (j < b && item.cols[j] < item.rows[i]);
            const Index state = no_row ? item.cols[j] : item.rows[i];
            const double more = no_col ? item.m.p[i] : no_row ? -item.m.q[j] : item.m.p[i] - item.m.q[j];
            rows_[m] = state, p_[m] = more, node_p_[m] = Int(i);
            cols_[n] = state, q_[n] = -more, node_q_[n] = Int(a + j);
            source_[i] = more > 0.0 ? m : NO_NODE, sink_[j] = more < 0.0 ? n : NO_NODE;
            m += more > 0.0, n += more < 0.0, ties += more == 0.0;
            i += !no_row, j += !no_col;
        }
        m_ = m, n_ = n, ties_ = ties;
    }

    /// The original tree from the reduced one, with the edges (s, s) but without ties; returns its number of edges.
    Index expand(const Item<Int>& item) {
        const Index a = item.a(), m = m_;
        const Tree<Int> from = tree(), to = item.tree;
        for (Index e = 0; e < from.edges; ++e) {
            const Index u = from.child[e], v = from.parent[e];
            to.child[e] = u < m ? node_p_[u] : node_q_[u - m];
            to.parent[e] = v < m ? node_p_[v] : node_q_[v - m];
            to.flow[e] = from.flow[e];
        }
        Index k = from.edges;
        for_common_states(item.rows, item.cols, [&](Index i, Index j) {
            const double p = item.m.p[i], q = item.m.q[j];
            if (p == q) return;
            const bool up = p > q;  // the row is in the reduced tree, and the column is attached to it
            to.child[k] = Int(up ? a + j : i), to.parent[k] = Int(up ? i : a + j), to.flow[k] = std::min(p, q);
            ++k;
        });
        return k;
    }

    /// Attach ties to the columns of least reduced cost, by edges from the k-th on; c are the reduced costs.
    void attach_ties(const Item<Int>& item, const Costs& c, Index k, View<double> W, Index n_y, Workspace& w) {
        const Index a = item.a();
        const Tree<Int> to = item.tree;
        tree_potentials(tree(), c, w.pot);
        for_common_states(item.rows, item.cols, [&](Index i, Index j) {
            if (source_[i] != NO_NODE || sink_[j] != NO_NODE) return;
            const double* line = W.data() + item.rows[i] * n_y;
            Index at = 0;
            double least = INF;
            for (Index t = 0; t < n_; ++t) {
                const double reduced = line[cols_[t]] - w.pot[m_ + t];
                if (reduced < least) at = t, least = reduced;
            }
            to.child[k] = Int(i), to.parent[k] = node_q_[at], to.flow[k] = 0.0;
            to.child[k + 1] = Int(a + j), to.parent[k + 1] = Int(i), to.flow[k + 1] = item.m.q[j];
            k += 2;
        });
    }

    /// The basis between two equal distributions, which moves nothing; returns whether they are equal.
    bool stay(const Item<Int>& item) {
        const Index a = item.a();
        const Tree<Int> to = item.tree;
        if (ties_ != a || ties_ != item.b()) return false;
        to.child[0] = Int(a), to.parent[0] = 0, to.flow[0] = item.m.q[0];
        for (Index i = 1; i < a; ++i) {
            const Index k = 2 * i - 1;
            to.child[k] = Int(i), to.parent[k] = Int(a), to.flow[k] = 0.0;
            to.child[k + 1] = Int(a + i), to.parent[k + 1] = Int(i), to.flow[k + 1] = item.m.q[i];
        }
        return true;
    }

    /// The reduced tree from the original one; returns whether the latter is staying.
    bool contract(const Item<Int>& item) {
        const Index a = item.a(), edges = m_ + n_ - 1;
        const Tree<Int> from = item.tree;
        Index k = 0;
        for (Index e = 0; e < from.edges; ++e) {
            const Index u = from.child[e], v = from.parent[e];
            const auto [i, j] = cell_of(u, v, a);
            if (item.rows[i] == item.cols[j]) continue;
            const Index s = source_[i], t = sink_[j];
            if (s == NO_NODE || t == NO_NODE || k == edges) return false;
            const bool up = u < v;
            child_[k] = Int(up ? s : m_ + t), parent_[k] = Int(up ? m_ + t : s), flow_[k] = from.flow[e];
            ++k;
        }
        return k == edges;
    }
};

/// The states sorted by their distance from each of n states (n*n,); equal distances by number.
inline std::vector<std::int32_t> nearest_states(View<double> W, Index n, Watch& watch) {
    std::vector<std::int32_t> nearest(W.size());
    for (Index s = 0; s < n; ++s) {
        const double* line = W.data() + s * n;
        std::int32_t* order = nearest.data() + s * n;
        for (Index t = 0; t < n; ++t) order[t] = std::int32_t(t);
        std::sort(order, order + n, [line](std::int32_t t, std::int32_t u) {
            return line[t] < line[u] || (line[t] == line[u] && t < u);
        });
        watch.spend(20 * n);
    }
    return nearest;
}

/// Reduced::first_basis for full rows, given the states sorted by their distance from each; returns the value of the
/// basis, infinite if none was built because of a tie. `left` has space for n numbers.
template <class Int>
ALWAYS_INLINE double staying_full(const Item<Int>& item, View<double> W, View<std::int32_t> nearest, double* left) {
    const double *p = item.m.p, *q = item.m.q;
    const Tree<Int> tree = item.tree;
    const Index n = item.a();
    const auto join = [&](Index k, Index child, Index parent, double flow) {
        tree.child[k] = Int(child), tree.parent[k] = Int(parent), tree.flow[k] = flow;
    };
    Index root = NO_NODE, n_open = 0;
    double value = 0.0;
    for (Index i = 0; i < n; ++i) {
        const double more = p[i] - q[i], both = std::min(p[i], q[i]);
        if (more == 0.0) return INF;
        const bool up = more > 0.0;
        join(n - 1 + i, up ? n + i : i, up ? i : n + i, both);
        value += both * W[i * n + i];
        root = up ? i : root, n_open += !up, left[i] = up ? -1.0 : -more;
    }
    if (root == NO_NODE || n_open == 0) return INF;
    Index k = n - 2;
    for (Index i = 0; i < root; ++i) {
        double mass = p[i] - q[i];
        if (mass < 0.0) continue;
        const double* line = W.data() + i * n;
        for (const std::int32_t* at = nearest.data() + i * n;; ++at) {
            const Index j = *at;
            if (left[j] < 0.0) continue;
            const bool last = mass < left[j] || n_open == 1;
            const double moved = last ? mass : left[j];
            join(k--, last ? i : n + j, last ? n + j : i, moved);
            value += moved * line[j];
            if (last) {
                left[j] = std::max(left[j] - mass, 0.0);
                break;
            }
            mass -= moved, left[j] = -1.0, --n_open;
        }
    }
    k = 0;
    for (Index j = 0; j < n; ++j) {
        if (left[j] < 0.0) continue;
        const double moved = n_open > 1 ? left[j] : p[root] - q[root];  // the same but for rounding, and not zero
        join(k++, n + j, root, moved);
        value += moved * W[root * n + j];
    }
    return value;
}

}  // namespace engine
