#include "transports.hpp"

#include <mutex>

namespace engine {
namespace {

/// How many narrow trees are tested before those that are not optimal any more are solved.
constexpr Index TESTED_AT_ONCE = 1024;

/// Sums of tables with more numbers than this (128 MB) are cut into fewer pieces, because every piece has tables of its own.
constexpr double MOST_NUMBERS_IN_SUMS = 16'000'000;

/// An estimate of all cells: trees have a + b - 1 edges for a b cells.
template <class Int> double cells_of(const Items& items, const Trees<Int>& trees) {
    return double(trees.child.size()) * double(trees.child.size()) / double(items.size());
}

// --- narrow trees ------------------------------------------------------------------------------------------------

/// Where the nodes of an item are in the table: the cell of a row and a column is at the sum of their places.
class Places {
  public:
    explicit Places(const Items& items) : place_(items.x.longest() + items.y.longest()), mass_(place_.size()), items_(items) {}

    /// Enter the rows of item k.
    ALWAYS_INLINE void enter(Index k) {
        const auto [i, j] = items_.rows_of(k);
        if (i != row_) a_ = enter(items_.x, i, items_.n_y, 0), row_ = i;
        b_ = enter(items_.y, j, 1, a_);
    }

    Index edges() const { return a_ + b_ - 1; }
    Index cell_of(Index u, Index v) const { return place_[u] + place_[v]; }

    /// The masses of the rows, then of the columns.
    void copy_masses(double* into) {
        std::copy(mass_.begin(), mass_.begin() + a_ + b_, into);
    }

  private:
    std::vector<Index> place_;
    std::vector<double> mass_;
    const Items& items_;
    Index row_ = -1, a_ = 0, b_ = 0;

    ALWAYS_INLINE Index enter(const Rows& rows, Index row, Index stride, Index first) {
        const Index start = rows.first[row], n = rows.length(row);
        for (Index s = 0; s < n; ++s) {
            place_[first + s] = rows.states[start + s] * stride;
            mass_[first + s] = rows.probabilities[start + s];
        }
        return n;
    }
};

/// The tests of narrow trees for one row of X after another.
///
/// The lines of the table that the row leads to are kept side by side, so that the cells of one column are a few vectors.
template <class Int> class NarrowTests {
  public:
    NarrowTests(const Items& items, const Trees<Int>& trees, View<double> W, double price)
        : items_(items), trees_(trees), W_(W), price_(price), width_((items.x.longest() + N_DOUBLES - 1) / N_DOUBLES * N_DOUBLES),
          lines_(items.n_y * width_), levels_(width_) {
        for (Nodes& nodes : nodes_) nodes = Nodes(items.x.longest() + items.y.longest());
    }

    /// Turn to row i of X.
    void enter(Index i) {
        const View<Index> rows = items_.x.states_of(i);
        a_ = Index(rows.size());
        for (Nodes& nodes : nodes_)
            for (Index s = 0; s < a_; ++s) nodes.place[s] = s, nodes.mass[s] = items_.x.probabilities_of(i)[s];
        for (Index s = 0; s < width_; s += 2) {
            const double* line = W_.data() + rows[std::min(s, a_ - 1)] * items_.n_y;
            const double* next = W_.data() + rows[std::min(s + 1, a_ - 1)] * items_.n_y;
            for (Index t = 0; t < items_.n_y; ++t) lines_[t * width_ + s] = line[t], lines_[t * width_ + s + 1] = next[t];
        }
        std::fill(levels_.begin() + a_, levels_.end(), -INF);  // vectors are filled up with cells that never are too cheap
    }

    /// OT_W of the pairs with rows lo … hi - 1 of Y where the trees (with edges from `first` on) are still optimal, from
    /// their potentials; NaN elsewhere.
    void test(Index lo, Index hi, Index first, double* values) {
        const Int *child = trees_.child.data() + first, *parent = trees_.parent.data() + first;
        for (Index j = lo; j < hi; j += AT_ONCE) {
            const Index n = std::min(AT_ONCE, hi - j);
            Index at[AT_ONCE + 1] = {0}, fewest = std::numeric_limits<Index>::max();
            for (Index k = 0; k < n; ++k) {
                const Index edges = nodes_[k].enter(items_.y, j + k, a_, width_);
                nodes_[k].pot[parent[at[k]]] = 0.0;
                at[k + 1] = at[k] + edges, fewest = std::min(fewest, edges);
            }
            if (n == AT_ONCE) {
                for (Index e = 0; e < fewest; ++e)
                    for (Index k = 0; k < AT_ONCE; ++k) nodes_[k].descend(child[at[k] + e], parent[at[k] + e], lines_.data());
            } else {
                fewest = 0;
            }
            for (Index k = 0; k < n; ++k) {
                for (Index e = at[k] + fewest; e < at[k + 1]; ++e) nodes_[k].descend(child[e], parent[e], lines_.data());
                values[j + k - lo] = result(nodes_[k]);
            }
            child += at[n], parent += at[n];
        }
    }

  private:
    static constexpr Index AT_ONCE = 4;  // items, because each potential waits for the one before

    /// The nodes of one item.
    struct Nodes {
        std::vector<Index> place;  // the cell of a row and a column is at the sum of their places
        std::vector<double> mass, pot;
        Index b = 0;

        explicit Nodes(Index size = 0) : place(size), mass(size), pot(size) {}

        /// Enter row j of Y; returns the number of edges.
        ALWAYS_INLINE Index enter(const Rows& y, Index j, Index a, Index width) {
            const Index start = y.first[j];
            b = y.length(j);
            for (Index t = 0; t < b; ++t) place[a + t] = y.states[start + t] * width, mass[a + t] = y.probabilities[start + t];
            return a + b - 1;
        }

        ALWAYS_INLINE void descend(Index child, Index parent, const double* lines) {
            pot[child] = lines[place[child] + place[parent]] - pot[parent];
        }
    };

    const Items& items_;
    const Trees<Int>& trees_;
    View<double> W_;
    double price_;
    Index width_;  // of the cells of a column
    std::vector<double> lines_;  // by columns
    std::vector<double> levels_;  // potentials of the rows, minus the price
    Nodes nodes_[AT_ONCE];
    Index a_ = 0;

    /// The dual value, or NaN if a reduced cost is below minus the price.
    ALWAYS_INLINE double result(const Nodes& nodes) {
        double value = 0.0;
        for (Index s = 0; s < a_; ++s) levels_[s] = nodes.pot[s] - price_, value += nodes.mass[s] * nodes.pot[s];
        Longs below = {};
        for (Index t = a_; t < a_ + nodes.b; ++t) {
            value += nodes.mass[t] * nodes.pot[t];
            const Doubles level = Doubles{} + nodes.pot[t];
            const double* cells = lines_.data() + nodes.place[t];
            for (Index s = 0; s < width_; s += N_DOUBLES) below |= doubles_at(cells + s) - level < doubles_at(levels_.data() + s);
        }
        return any_of(below) ? NOT_A_NUMBER : value;
    }
};

/// Narrow trees of the items lo … hi - 1, which are pairs of rows.
template <class Int>
Swept solve_narrow(
    Index lo, Index hi, const Items& items, const Trees<Int>& trees, View<double> W, const Effort& effort, const SinglePlans& plans,
    Watch& watch, Out<double> values
) {
    const bool tested = effort.basis == Basis::FEASIBLE;
    const Index m_y = items.y.size();
    ItemScratch scratch(items.x.longest(), items.y.longest(), watch);
    NarrowTests<Int> tests(items, trees, W, effort.price);
    Places places(items);
    Swept swept;
    const auto solve_again = [&](Index k) {
        values[k] = solve_item(k, items, trees, W, effort, scratch, swept);
        if (plans.flow.empty()) return;
        places.enter(k);
        const Index first = trees.first_edge(items, k), edges = places.edges();
        for (Index e = 0; e < edges; ++e) plans.flow[first + e] = float(scratch.flow[e]);
        if (plans.target.empty()) return;
        for (Index e = first; e < first + edges; ++e)
            plans.target[e] = std::int32_t(places.cell_of(trees.child[e], trees.parent[e]));
    };
    for (Index k = lo; k < hi;) {
        const Index i = k / m_y, end = std::min(hi, (i + 1) * m_y);
        if (tested) tests.enter(i);
        for (Index first = k; first < end; first += TESTED_AT_ONCE) {
            const Index last = std::min(first + TESTED_AT_ONCE, end);
            if (tested) tests.test(first - i * m_y, last - i * m_y, trees.first_edge(items, first), values.data() + first);
            for (Index item = first; item < last; ++item)
                if (!tested || std::isnan(values[item])) solve_again(item);
        }
        watch.spend((end - k) * (items.x.longest() + items.y.longest()));
        k = end;
    }
    return swept;
}

// --- potentials --------------------------------------------------------------------------------------------------

/// The potentials of one item after another.
template <class Int> class Potentials {
  public:
    Potentials(const Items& items, const Trees<Int>& trees, View<double> W)
        : items_(items), trees_(trees), W_(W), pot_(items.x.longest() + items.y.longest()), spare_(pot_.size()),
          costs_(items.x.longest() * items.y.longest()) {}

    /// Compute those of item k on the supports: pot()[s] for the rows, then for the columns.
    const double* of(Index k) {
        const auto [i, j] = items_.rows_of(k);
        rows_ = items_.x.states_of(i), cols_ = items_.y.states_of(j);
        const Costs c = costs_of(W_, items_.n_y, rows_, cols_, costs_.data());
        tree_potentials(trees_.tree(items_, k, c.nodes() - 1, spare_.data()), c, pot_.data());
        return pot_.data();
    }

    /// Extend the last ones off the supports: f_s = min_t W_st - g_t over the support of the other side, and so for g.
    void extend(Out<double> f, Out<double> g) const {
        const Index a = Index(rows_.size()), b = Index(cols_.size()), n_y = items_.n_y;
        const double *pot_x = pot_.data(), *pot_y = pot_.data() + a;
        if (a < Index(f.size())) {
            for (Index s = 0; s < Index(f.size()); ++s) {
                const double* line = W_.data() + s * n_y;
                double least = INF;
                for (Index t = 0; t < b; ++t) {
                    const double v = line[cols_[t]] - pot_y[t];
                    least = v < least ? v : least;
                }
                f[s] = least;
            }
        }
        if (b < Index(g.size())) {
            std::fill(g.begin(), g.end(), INF);
            for (Index s = 0; s < a; ++s) {
                const double *line = W_.data() + rows_[s] * n_y, level = pot_x[s];
                for (Index t = 0; t < Index(g.size()); ++t) {
                    const double v = line[t] - level;
                    g[t] = v < g[t] ? v : g[t];
                }
            }
        }
        for (Index s = 0; s < a; ++s) f[rows_[s]] = pot_x[s];
        for (Index t = 0; t < b; ++t) g[cols_[t]] = pot_y[t];
    }

  private:
    const Items& items_;
    const Trees<Int>& trees_;
    View<double> W_;
    std::vector<double> pot_, spare_, costs_;
    View<Index> rows_, cols_;
};

/// Two tables that are summed over pieces of the items.
struct Sums {
    std::vector<double> x, y;
};

/// by_x, by_y = the sums of add(lo, hi, watch, sums_x, sums_y) over pieces of the items, cut by their size alone.
template <class Add> void sum_pieces(Team& team, Index size, double work, Out<double> by_x, Out<double> by_y, Add&& add) {
    const double room = std::clamp(std::floor(MOST_NUMBERS_IN_SUMS / double(by_x.size() + by_y.size())), 2.0, 16.0);
    const Index pieces = std::min(even_pieces(size, work), Index(room));
    std::vector<Sums> others(std::size_t(pieces - 1));
    split(team, pieces, work, [&](Index from, Index to, Watch& watch) {
        for (Index k = from; k < to; ++k) {
            const Index lo = size * k / pieces, hi = size * (k + 1) / pieces;
            if (k == 0) {
                add(lo, hi, watch, by_x, by_y);
            } else {
                Sums& own = others[std::size_t(k - 1)];
                own.x.resize(by_x.size()), own.y.resize(by_y.size());
                add(lo, hi, watch, Out<double>(own.x), Out<double>(own.y));
            }
        }
    });
    for (Sums& more : others) {
        for (std::size_t s = 0; s < by_x.size(); ++s) by_x[s] += more.x[s];
        for (std::size_t t = 0; t < by_y.size(); ++t) by_y[t] += more.y[t];
        more = {};
    }
}

}  // namespace

// --- all items, with all threads ---------------------------------------------------------------------------------

Swept solve(
    Team& team, const Transports& transports, View<double> W, const Effort& effort, const SinglePlans& plans, Out<double> values
) {
    const Items& items = transports.items;
    return std::visit([&]<class Int>(const Trees<Int>& trees) {
        Swept swept;
        std::mutex guard;
        split(team, items.size(), cells_of(items, trees), [&](Index lo, Index hi, Watch& watch) {
            Swept more;
            if (trees.narrow()) {
                more = solve_narrow(lo, hi, items, trees, W, effort, plans, watch, values);
            } else {
                ItemScratch scratch(items.x.longest(), items.y.longest(), watch);
                more = solve_items(lo, hi, items, trees, W, effort, scratch, values);
            }
            const std::lock_guard lock(guard);
            swept.add(more);
        });
        return swept;
    }, transports.trees);
}

template <class Number>
void edge_targets(Team& team, const Transports& transports, View<Index> numbers, Out<Number> targets) {
    const Items& items = transports.items;
    std::visit([&]<class Int>(const Trees<Int>& trees) {
        split(team, items.size(), double(targets.size()), [&](Index lo, Index hi, Watch& watch) {
            Places places(items);
            for (Index k = lo; k < hi; ++k) {
                places.enter(k);
                const Index first = trees.first_edge(items, k), edges = places.edges();
                for (Index e = first; e < first + edges; ++e) {
                    const Index z = places.cell_of(trees.child[e], trees.parent[e]);
                    targets[e] = Number(numbers.empty() ? z : numbers[z]);
                }
                watch.spend(2 * edges);
            }
        });
    }, transports.trees);
}

template void edge_targets(Team&, const Transports&, View<Index>, Out<std::int32_t>);
template void edge_targets(Team&, const Transports&, View<Index>, Out<std::int64_t>);

template <class Number> void narrow_plans(Team& team, const Transports& transports, Out<Number> targets, Out<double> flow) {
    const Items& items = transports.items;
    std::visit([&]<class Int>(const Trees<Int>& trees) {
        split(team, items.size(), double(flow.size()), [&](Index lo, Index hi, Watch& watch) {
            Places places(items);
            std::vector<double> left(items.x.longest() + items.y.longest());
            for (Index k = lo; k < hi; ++k) {
                places.enter(k);
                places.copy_masses(left.data());
                const Index first = trees.first_edge(items, k), edges = places.edges();
                for (Index e = first + edges - 1; e >= first; --e) {
                    const Index u = trees.child[e], v = trees.parent[e];
                    left[v] -= left[u];
                    flow[e] = std::max(left[u], 0.0);
                    if (!targets.empty()) targets[e] = Number(places.cell_of(u, v));
                }
                watch.spend(4 * edges);
            }
        });
    }, transports.trees);
}

template void narrow_plans(Team&, const Transports&, Out<std::int32_t>, Out<double>);
template void narrow_plans(Team&, const Transports&, Out<std::int64_t>, Out<double>);

void sum_potentials(Team& team, const Transports& transports, View<double> W, View<double> m, Out<double> by_x, Out<double> by_y) {
    const Items& items = transports.items;
    const Index n_x = Index(by_x.size()) / items.x.size(), n_y = Index(by_y.size()) / items.y.size();
    std::visit([&]<class Int>(const Trees<Int>& trees) {
        const double cells = double(n_x * items.y.longest()) + double(n_y * items.x.longest());
        sum_pieces(team, items.size(), double(items.size()) * cells, by_x, by_y, [&](Index lo, Index hi, Watch& watch, Out<double> x, Out<double> y) {
            Potentials<Int> potentials(items, trees, W);
            std::vector<double> f(n_x), g(n_y);
            for (Index k = lo; k < hi; ++k) {
                if (m[k] == 0.0) continue;
                const auto [i, j] = items.rows_of(k);
                potentials.of(k);
                potentials.extend(f, g);
                for (Index s = 0; s < n_x; ++s) x[i * n_x + s] += m[k] * f[s];
                for (Index t = 0; t < n_y; ++t) y[j * n_y + t] += m[k] * g[t];
                watch.spend(Index(cells));
            }
        });
    }, transports.trees);
}

void sum_potentials_on_supports(
    Team& team, const Transports& transports, View<double> W, View<double> m, Out<double> by_x, Out<double> by_y
) {
    const Items& items = transports.items;
    std::visit([&]<class Int>(const Trees<Int>& trees) {
        const double work = cells_of(items, trees);
        sum_pieces(team, items.size(), work, by_x, by_y, [&](Index lo, Index hi, Watch& watch, Out<double> x, Out<double> y) {
            Places places(items);
            std::vector<double> pot(items.x.longest() + items.y.longest());
            for (Index k = lo; k < hi; ++k) {
                watch.spend(1);
                if (m[k] == 0.0) continue;
                const auto [i, j] = items.rows_of(k);
                places.enter(k);
                const Index first = trees.first_edge(items, k), end = first + places.edges();
                pot[trees.parent[first]] = 0.0;
                for (Index e = first; e < end; ++e) pot[trees.child[e]] = W[places.cell_of(trees.child[e], trees.parent[e])] - pot[trees.parent[e]];
                const Index a = items.x.length(i), b = items.y.length(j);
                double *into_x = x.data() + items.x.first[i], *into_y = y.data() + items.y.first[j];
                for (Index s = 0; s < a; ++s) into_x[s] += m[k] * pot[s];
                for (Index t = 0; t < b; ++t) into_y[t] += m[k] * pot[a + t];
                watch.spend(4 * (a + b));
            }
        });
    }, transports.trees);
}

// --- single items ------------------------------------------------------------------------------------------------

void item_flows(const Transports& transports, Index k, Out<double> flow) {
    const Items& items = transports.items;
    std::visit([&]<class Int>(const Trees<Int>& trees) {
        const auto [i, j] = items.rows_of(k);
        const Marginals m{items.x.probabilities_of(i).data(), items.y.probabilities_of(j).data()};
        const Index a = items.x.length(i), b = items.y.length(j);
        std::vector<double> net(a + b);
        true_flows(trees.tree(items, k, a + b - 1, flow.data()), m, a, b, net.data());
    }, transports.trees);
}

void item_potentials(const Transports& transports, Index k, View<double> W, Out<double> f, Out<double> g) {
    std::visit([&]<class Int>(const Trees<Int>& trees) {
        Potentials<Int> potentials(transports.items, trees, W);
        potentials.of(k);
        potentials.extend(f, g);
    }, transports.trees);
}

template <class Int>
std::pair<Index, Unfit> first_unfit(const Items& items, const UncheckedTrees<Int>& trees, double tolerance, Watch& watch) {
    const Index nodes = items.x.longest() + items.y.longest();
    std::vector<Index> seen(nodes, -1);  // the last item in which a node was met
    std::vector<double> left(nodes);
    for (Index k = 0; k < items.size(); ++k) {
        const auto [i, j] = items.rows_of(k);
        const Index a = items.x.length(i), n = a + items.y.length(j), first = trees.at[k];
        const auto is_node = [=](Index node) { return 0 <= node && node < n; };
        const Index root = trees.parent[first];
        if (!is_node(root)) return {k, Unfit::EDGES};
        seen[root] = k;
        std::ranges::copy(items.x.probabilities_of(i), left.begin());
        std::ranges::copy(items.y.probabilities_of(j), left.begin() + a);
        for (Index e = first; e < first + n - 1; ++e) {
            const Index u = trees.child[e], v = trees.parent[e];
            if (!is_node(u) || !is_node(v) || (u < a) == (v < a)) return {k, Unfit::EDGES};
            if (seen[v] != k || seen[u] == k) return {k, Unfit::EDGES};  // parents come first, and every other node once
            seen[u] = k;
            left[u] -= trees.flow[e], left[v] -= trees.flow[e];
        }
        for (Index node = 0; node < n; ++node)
            if (!(std::abs(left[node]) <= tolerance)) return {k, Unfit::FLOWS};
        watch.spend(8 * n);
    }
    return {0, Unfit::NOTHING};
}

template std::pair<Index, Unfit> first_unfit(const Items&, const UncheckedTrees<std::int8_t>&, double, Watch&);
template std::pair<Index, Unfit> first_unfit(const Items&, const UncheckedTrees<std::int16_t>&, double, Watch&);
template std::pair<Index, Unfit> first_unfit(const Items&, const UncheckedTrees<std::int32_t>&, double, Watch&);

// --- one transport -----------------------------------------------------------------------------------------------

template <class Int>
Solution solve_one(const Costs& c, Marginals m, Tree<Int> tree, double price, Out<double> pot, Watch& watch) {
    Workspace w(c.nodes(), watch);
    const Pivoted found = optimize(c, tree, w, price);
    const double clipped = true_flows(tree, m, c.a, c.b, w.net);
    std::copy(w.pot, w.pot + c.nodes(), pot.begin());
    double least = 0.0;
    for (Index i = 0; i < c.a; ++i) least = std::min(least, least_of(c.row(i), w.pot + c.a, c.b) - w.pot[i]);
    return {tree_value(tree, c), found.done, -least, clipped};
}

template Solution solve_one(const Costs&, Marginals, Tree<std::int8_t>, double, Out<double>, Watch&);
template Solution solve_one(const Costs&, Marginals, Tree<std::int16_t>, double, Out<double>, Watch&);
template Solution solve_one(const Costs&, Marginals, Tree<std::int32_t>, double, Out<double>, Watch&);

}  // namespace engine
