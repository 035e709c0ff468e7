// The Python module: arrays are checked and passed on without copies, the interpreter's lock is released, and Ctrl-C
// ends a computation. The only file that knows Python.
#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "barycenters.hpp"
#include "certificates.hpp"
#include "evaluation.hpp"
#include "dense.hpp"
#include "exponential.hpp"
#include "games.hpp"
#include "linear.hpp"
#include "pairs.hpp"
#include "refine.hpp"
#include "sinkhorn.hpp"
#include "small.hpp"
#include "somcot.hpp"
#include "successors.hpp"
#include "transports.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using engine::Index;
template <class T> using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using OutArray = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using NewArray = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;

template <class T> engine::View<T> view(const Array<T>& array) { return {array.data(), array.size()}; }
template <class T> engine::Out<T> out(const OutArray<T>& array) { return {array.data(), array.size()}; }

template <class T> NewArray<T> as_array(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return NewArray<T>(kept->data(), {kept->size()}, owner);
}

void require(bool holds, const char* sentence) {
    if (!holds) throw nb::value_error(sentence);
}

void require_range(engine::View<Index> values, Index end, const char* sentence) {
    bool inside = true;
    for (const Index value : values) inside &= 0 <= value && value < end;
    require(inside, sentence);
}

/// An array of a named tuple, as it is: not converted.
template <class Wanted> Wanted member(nb::handle tuple, const char* name) {
    Wanted array;
    if (!nb::try_cast<Wanted>(tuple.attr(name), array, false)) {
        throw nb::type_error((std::string(name) + " is not a contiguous array of the expected type").c_str());
    }
    return array;
}

// --- threads and interrupts --------------------------------------------------------------------------------------

/// How a call computes: its number of threads, and what stops it.
struct Run {
    int threads;
    OutArray<bool> stop;  // (1,) set by another thread
    double deadline;  // of `seconds`
    double share;  // least work that a thread gets

    bool is_late() const { return seconds() >= deadline; }
    bool is_told_to_stop() const { return __atomic_load_n(stop.data(), __ATOMIC_RELAXED); }

    static double seconds() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
};

/// Compute without the interpreter's lock. Ctrl-C and a stop by another thread end the computation with
/// KeyboardInterrupt (or what the handler of the signal raises), a deadline ends it with TimeoutError.
template <class Compute> auto without_lock(const Run& run, Compute&& compute) {
    bool raised = false, late = false;
    const auto is_stopped = [&] {
        if (run.is_told_to_stop()) return true;
        nb::gil_scoped_acquire lock;
        raised = PyErr_CheckSignals() != 0;  // only the main thread handles signals
        return raised || (late = run.is_late());
    };
    try {
        nb::gil_scoped_release unlocked;
        engine::Team team(run.threads, is_stopped, run.share);
        return compute(team);
    } catch (const engine::Stopped&) {
        if (!raised) PyErr_SetNone(late ? PyExc_TimeoutError : PyExc_KeyboardInterrupt);
        throw nb::python_error();
    }
}

// --- partition refinement ----------------------------------------------------------------------------------------

nb::tuple refine(
    const Array<Index>& first, const Array<Index>& sources, const Array<double>& probabilities,
    const Array<Index>& classes, double tolerance, const Run& run
) {
    const engine::View<Index> ends = view(first);
    const Index n = Index(classes.size()), edges = Index(sources.size());
    require(n > 0 && ends.size() > 1 && (Index(ends.size()) - 1) % n == 0, "first needs one entry for each column, and one more");
    require(ends.front() == 0 && ends.back() == edges && std::is_sorted(ends.begin(), ends.end()), "first must ascend from 0 to the number of edges");
    require(Index(probabilities.size()) == edges, "probabilities and sources must have the same size");
    require_range(view(sources), n, "sources must be numbers of states");
    require_range(view(classes), n, "classes must be numbers from 0 to n - 1");
    const Index n_classes = 1 + *std::max_element(classes.data(), classes.data() + n);
    engine::Refinement found = without_lock(run, [&](engine::Team& team) {
        engine::Watch watch(team);
        return engine::refine({ends, view(sources), view(probabilities)}, view(classes), n_classes, tolerance, watch);
    });
    return nb::make_tuple(as_array(std::move(found.classes)), found.edges_visited);
}

void add_refinement(nb::module_& m) {
    m.def(
        "refine", &refine, "first"_a.noconvert(), "sources"_a.noconvert(), "probabilities"_a.noconvert(),
        "classes"_a.noconvert(), "tolerance"_a, "run"_a
    );
}

// --- linear systems ----------------------------------------------------------------------------------------------

using Matrix = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

bool solve_dense(const Matrix& matrix, const Matrix& sides, const Run& run) {
    require(matrix.shape(0) == matrix.shape(1) && matrix.shape(0) == sides.shape(0), "matrix must be (n, n), and sides (n, m)");
    const engine::DenseSystem system{
        {matrix.data(), matrix.size()}, {sides.data(), sides.size()}, Index(sides.shape(0)), Index(sides.shape(1))
    };
    return without_lock(run, [&](engine::Team& team) { return engine::solve_dense(system, team); });
}

void add_linear(nb::module_& m) { m.def("solve_dense", &solve_dense, "matrix"_a.noconvert(), "sides"_a.noconvert(), "run"_a); }

// --- transports --------------------------------------------------------------------------------------------------

engine::Rows rows_of(nb::handle successors) {
    const auto first = member<Array<Index>>(successors, "indptr"), states = member<Array<Index>>(successors, "indices");
    const auto probabilities = member<Array<double>>(successors, "probabilities");
    const engine::Rows rows{view(first), view(states), view(probabilities)};
    require(rows.first.size() > 1 && rows.first.front() == 0 && rows.first.back() == Index(states.size()), "indptr must go from 0 to the number of entries");
    require(std::adjacent_find(rows.first.begin(), rows.first.end(), std::greater_equal<>()) == rows.first.end(), "every row needs an entry");
    require(probabilities.size() == states.size(), "indices and probabilities must have the same size");
    bool ascending = true;
    for (Index i = 0; i < rows.size(); ++i)
        for (Index e = rows.first[i] + 1; e < rows.first[i + 1]; ++e) ascending &= rows.states[e - 1] < rows.states[e];
    require(ascending, "the states of every row must ascend");
    return rows;
}

/// The largest state of any row, plus one; refuses negative ones.
Index states_of(const engine::Rows& rows) {
    Index most = 0;
    for (Index i = 0; i < rows.size(); ++i) most = std::max(most, rows.states[rows.first[i + 1] - 1] + 1);
    require_range(rows.states, most, "states must not be negative");
    return most;
}

/// The order in which first bases take the entries of each row: positions within the row.
engine::View<Index> order_of(nb::handle items, const char* name, const engine::Rows& rows) {
    const engine::View<Index> order = view(member<Array<Index>>(items, name));
    require(order.size() == rows.states.size(), "an order needs one number for every entry");
    bool inside = true;
    for (Index i = 0; i < rows.size(); ++i)
        for (Index e = rows.first[i]; e < rows.first[i + 1]; ++e) inside &= 0 <= order[e] && order[e] < rows.length(i);
    require(inside, "an order must consist of positions within the rows");
    return order;
}

engine::Items items_of(nb::handle tuple) {
    const engine::Rows x = rows_of(tuple.attr("x")), y = rows_of(tuple.attr("y"));
    const engine::Items items{
        x, y, nb::cast<Index>(tuple.attr("n_y")), view(member<Array<Index>>(tuple, "listed")), order_of(tuple, "order_x", x), order_of(tuple, "order_y", y),
    };
    require_range(items.listed, x.size() * y.size(), "listed must be numbers of pairs of rows");
    require(states_of(y) <= items.n_y, "the states of Y must be columns of the table");
    return items;
}

/// The largest pair of states that an item leads to.
Index last_pair_of(const engine::Items& items) {
    if (items.listed.empty()) return (states_of(items.x) - 1) * items.n_y + states_of(items.y) - 1;
    Index most = 0;
    for (const Index z : items.listed)
        most = std::max(most, items.x.states_of(z / items.y.size()).back() * items.n_y + items.y.states_of(z % items.y.size()).back());
    return most;
}

/// The first edges of all items must leave a + b - 1 edges for each.
void require_edges(const engine::Items& items, engine::View<Index> at, std::size_t edges) {
    require(Index(at.size()) == items.size() + 1 && at.front() == 0 && at.back() == Index(edges), "at must go from 0 to the number of edges");
    bool fit = true;
    for (Index k = 0; k < items.size(); ++k) {
        const auto [i, j] = items.rows_of(k);
        fit &= at[k + 1] - at[k] == items.x.length(i) + items.y.length(j) - 1;
    }
    require(fit, "trees need a + b - 1 edges for every item");
}

/// A list of transports whose arrays belong to Python.
struct Transports {
    engine::Transports core;
    Index n_states;  // of X, at least
    Index last_pair;  // the largest one that an item leads to
    Index n_edges = 0;
    nb::object items, trees;  // the tuples of arrays, kept alive
    std::unique_ptr<engine::Dense> dense;  // for full rows

    Transports(nb::object items_, nb::object trees_, std::pair<Index, Index> dense_from) : items(std::move(items_)), trees(std::move(trees_)) {
        core.items = items_of(items);
        n_states = states_of(core.items.x), last_pair = last_pair_of(core.items);
        const nb::object child = trees.attr("child");
        if (!hold<std::int8_t>(child) && !hold<std::int16_t>(child) && !hold<std::int32_t>(child))
            throw nb::type_error("edges must be contiguous arrays of int8, int16 or int32");
        if (engine::fits_dense(core, {dense_from.first, dense_from.second})) dense = std::make_unique<engine::Dense>(core);
    }

    template <class Int> bool hold(const nb::object& child) {
        OutArray<Int> children;
        if (!nb::try_cast(child, children, false)) return false;
        const auto parents = member<OutArray<Int>>(trees, "parent");
        const auto at = member<Array<Index>>(trees, "at");
        const auto flow = member<OutArray<double>>(trees, "flow");
        const engine::Items& list = core.items;
        const engine::Trees<Int> held{view(at), out(children), out(parents), out(flow)};
        require(held.child.size() == held.parent.size(), "child and parent must have the same size");
        require(list.x.longest() + list.y.longest() - 1 <= Index(std::numeric_limits<Int>::max()), "the type of the edges is too short for the numbers of the nodes");
        if (held.narrow()) {
            require(list.listed.empty(), "narrow trees need all pairs of rows");
            const Index edges = held.first_edge(list, list.size() - 1) + list.x.length(list.x.size() - 1) + list.y.length(list.y.size() - 1) - 1;
            require(Index(held.child.size()) == edges, "narrow trees need a + b - 1 edges for every item");
        } else {
            require(held.flow.size() == held.child.size(), "trees need one flow for every edge");
            require_edges(list, held.at, held.child.size());
        }
        n_edges = Index(held.child.size());
        core.trees = held;
        return true;
    }

    bool narrow() const {
        return std::visit([](const auto& held) { return held.narrow(); }, core.trees);
    }

    void require_item(Index k) const { require(0 <= k && k < core.items.size(), "there is no such item"); }

    void require_table(const Array<double>& W) const {
        require(Index(W.size()) >= n_states * core.items.n_y, "the table needs an entry for every pair of states");
    }

    nb::tuple solve(const Array<double>& W, const OutArray<double>& values, nb::handle effort, nb::handle plans, const Run& run) {
        const auto slack = member<Array<double>>(effort, "slack");
        const auto target = member<OutArray<std::int32_t>>(plans, "target");
        const auto flow = member<OutArray<float>>(plans, "flow");
        const int basis = nb::cast<int>(effort.attr("basis"));
        const std::size_t size = std::size_t(core.items.size());
        require_table(W);
        require(values.size() == size, "values needs one number for every item");
        require(slack.size() == 0 || slack.size() == size, "slack needs one number for every item, or none");
        require(0 <= basis && basis <= int(engine::Basis::FEASIBLE), "there is no such basis");
        require(flow.size() == 0 || Index(flow.size()) == n_edges, "plans need one flow for every edge");
        require(target.size() == 0 || target.size() == flow.size(), "plans need one target for every edge, or none");
        const engine::Effort how{engine::Basis(basis), nb::cast<double>(effort.attr("price")), view(slack)};
        const engine::Swept swept = without_lock(run, [&](engine::Team& team) {
            if (dense) return dense->solve(team, core, view(W), how, out(values));
            return engine::solve(team, core, view(W), how, {out(target), out(flow)}, out(values));
        });
        return nb::make_tuple(swept.pivots, swept.failed, swept.clipped);
    }

    template <class Number> void targets(const Array<Index>& numbers, const OutArray<Number>& targets, const Run& run) const {
        require(Index(targets.size()) == n_edges, "targets needs one number for every edge");
        require(numbers.size() == 0 || Index(numbers.size()) > last_pair, "numbers needs one for every pair of states");
        without_lock(run, [&](engine::Team& team) { engine::edge_targets(team, core, view(numbers), out(targets)); });
    }

    template <class Number> void plans(const OutArray<Number>& targets, const OutArray<double>& flow, const Run& run) const {
        require(narrow() && Index(flow.size()) == n_edges, "flows are computed for narrow trees, one for every edge");
        require(targets.size() == 0 || targets.size() == flow.size(), "targets needs one number for every edge, or none");
        without_lock(run, [&](engine::Team& team) { engine::narrow_plans(team, core, out(targets), out(flow)); });
    }

    nb::tuple edges_of(Index k) const {
        require_item(k);
        const auto [i, j] = core.items.rows_of(k);
        const Index first = std::visit([&, item = k](const auto& held) { return held.first_edge(core.items, item); }, core.trees);
        return nb::make_tuple(first, first + core.items.x.length(i) + core.items.y.length(j) - 1);
    }

    NewArray<double> item_flows(Index k) const {
        require_item(k);
        const auto [i, j] = core.items.rows_of(k);
        std::vector<double> flow(core.items.x.length(i) + core.items.y.length(j) - 1);
        engine::item_flows(core, k, flow);
        return as_array(std::move(flow));
    }

    nb::tuple potentials(Index k, const Array<double>& W) const {
        require_item(k);
        require_table(W);
        std::vector<double> f(W.size() / std::size_t(core.items.n_y)), g{};
        g.resize(std::size_t(core.items.n_y));
        engine::item_potentials(core, k, view(W), f, g);
        return nb::make_tuple(as_array(std::move(f)), as_array(std::move(g)));
    }

    void sum_potentials(
        const Array<double>& W, const Array<double>& m, const OutArray<double>& by_x, const OutArray<double>& by_y, bool on_supports,
        const Run& run
    ) const {
        const engine::Items& list = core.items;
        require_table(W);
        require(Index(m.size()) == list.size(), "m needs one number for every item");
        if (on_supports) {
            require(by_x.size() == list.x.states.size() && by_y.size() == list.y.states.size(), "the sums need one number for every entry");
            without_lock(run, [&](engine::Team& team) {
                engine::sum_potentials_on_supports(team, core, view(W), view(m), out(by_x), out(by_y));
            });
        } else {
            const Index n_x = Index(W.size()) / list.n_y;
            require(Index(by_x.size()) == list.x.size() * n_x && Index(by_y.size()) == list.y.size() * list.n_y, "the sums need one number for every row and state");
            without_lock(run, [&](engine::Team& team) {
                engine::sum_potentials(team, core, view(W), view(m), out(by_x), out(by_y));
            });
        }
    }
};

/// The trees of a file, which have not been checked.
nb::tuple first_unfit(nb::handle items, nb::handle trees, double tolerance, const Run& run) {
    const engine::Items list = items_of(items);
    const auto at = member<Array<Index>>(trees, "at");
    const auto flow = member<Array<double>>(trees, "flow");
    const nb::object child = trees.attr("child");
    std::pair<Index, engine::Unfit> found{0, engine::Unfit::NOTHING};
    const auto check = [&]<class Int>(Int) {
        Array<Int> children;
        if (!nb::try_cast(child, children, false)) return false;
        const auto parents = member<Array<Int>>(trees, "parent");
        require(children.size() == parents.size() && children.size() == flow.size(), "child, parent and flow must have the same size");
        require_edges(list, view(at), flow.size());
        found = without_lock(run, [&](engine::Team& team) {
            engine::Watch watch(team);
            return engine::first_unfit<Int>(list, {view(at), view(children), view(parents), view(flow)}, tolerance, watch);
        });
        return true;
    };
    if (!check(std::int8_t()) && !check(std::int16_t()) && !check(std::int32_t()))
        throw nb::type_error("edges must be contiguous arrays of int8, int16 or int32");
    return nb::make_tuple(found.first, int(found.second));
}

/// The tree of one transport, which belongs to Python.
template <class Int> engine::Tree<Int> tree_of(nb::handle tuple, Index nodes) {
    const auto child = member<OutArray<Int>>(tuple, "child"), parent = member<OutArray<Int>>(tuple, "parent");
    const auto flow = member<OutArray<double>>(tuple, "flow");
    const Index edges = Index(flow.size());
    require(nodes >= 2 && edges == nodes - 1 && Index(child.size()) == edges && Index(parent.size()) == edges, "a tree needs a + b - 1 edges");
    require(edges <= Index(std::numeric_limits<Int>::max()), "the type of the edges is too short for the numbers of the nodes");
    return {child.data(), parent.data(), flow.data(), edges};
}

/// Call use(tree) with the tree in the type of its edges.
template <class Use> auto with_tree(nb::handle tuple, Index nodes, Use&& use) {
    const nb::object child = tuple.attr("child");
    if (OutArray<std::int8_t> short_edges; nb::try_cast(child, short_edges, false)) return use(tree_of<std::int8_t>(tuple, nodes));
    if (OutArray<std::int16_t> medium_edges; nb::try_cast(child, medium_edges, false)) return use(tree_of<std::int16_t>(tuple, nodes));
    return use(tree_of<std::int32_t>(tuple, nodes));
}

/// The same with a tree whose edges are pairs of nodes.
template <class Use> auto with_edges(nb::handle tuple, Index nodes, Use&& use) {
    return with_tree(tuple, nodes, [&]<class Int>(engine::Tree<Int> tree) {
        bool inside = true;
        for (Index k = 0; k < tree.edges; ++k) inside &= 0 <= tree.child[k] && tree.child[k] < nodes && 0 <= tree.parent[k] && tree.parent[k] < nodes;
        require(inside, "edges must be pairs of nodes");
        return use(tree);
    });
}

using Table = nb::ndarray<const double, nb::ndim<2>, nb::device::cpu>;

/// The costs of one transport, which may be part of a larger table.
engine::Costs costs_of(const Table& C) {
    require(C.shape(0) > 0 && C.shape(1) > 0 && (C.stride(1) == 1 || C.shape(1) == 1), "the entries of a row must be contiguous");
    return {C.data(), C.stride(0), Index(C.shape(0)), Index(C.shape(1))};
}

engine::Marginals marginals_of(const Array<double>& p, const Array<double>& q, const engine::Costs& c) {
    require(Index(p.size()) == c.a && Index(q.size()) == c.b, "marginals need one number for every row and column");
    return {p.data(), q.data()};
}

nb::tuple solve_one(
    const Table& C, const Array<double>& p, const Array<double>& q, nb::handle tree, double price, const OutArray<double>& pot, const Run& run
) {
    const engine::Costs c = costs_of(C);
    const engine::Marginals m = marginals_of(p, q, c);
    require(Index(pot.size()) == c.nodes(), "pot needs one entry for every node");
    const engine::Solution found = with_edges(tree, c.nodes(), [&](auto edges) {
        return without_lock(run, [&](engine::Team& team) {
            engine::Watch watch(team);
            return engine::solve_one(c, m, edges, price, out(pot), watch);
        });
    });
    return nb::make_tuple(found.value, found.solved, found.price, found.clipped);
}

/// The northwest corner's basis along these orders of rows and columns.
void northwest_corner(const Array<double>& p, const Array<double>& q, const Array<Index>& rows, const Array<Index>& cols, nb::handle tree) {
    const Index a = Index(p.size()), b = Index(q.size());
    require(rows.size() == p.size() && cols.size() == q.size(), "orders need one number for every row and column");
    require_range(view(rows), a, "orders must consist of numbers of rows"), require_range(view(cols), b, "orders must consist of numbers of columns");
    with_tree(tree, a + b, [&](auto edges) { engine::northwest_corner({p.data(), q.data()}, rows.data(), cols.data(), a, b, edges); });
}

/// The basis in which every row takes its cheapest open columns.
void greedy(const Table& C, const Array<double>& p, const Array<double>& q, nb::handle tree) {
    const engine::Costs c = costs_of(C);
    const engine::Marginals m = marginals_of(p, q, c);
    with_tree(tree, c.nodes(), [&](auto edges) {
        engine::Team team;
        engine::Watch watch(team);
        engine::Workspace w(c.nodes(), watch);
        engine::greedy(c, m, edges, w);
    });
}

/// At most this many pivots of the primal simplex.
nb::tuple simplex(const Table& C, nb::handle tree, double price, Index max_pivots, const OutArray<double>& pot) {
    const engine::Costs c = costs_of(C);
    require(Index(pot.size()) == c.nodes(), "pot needs one entry for every node");
    const engine::Pivoted found = with_edges(tree, c.nodes(), [&](auto edges) {
        engine::Team team;
        engine::Watch watch(team);
        engine::Workspace w(c.nodes(), watch);
        const engine::Pivoted done = engine::simplex(c, edges, w, price, max_pivots);
        std::copy(w.pot, w.pot + c.nodes(), pot.data());
        return done;
    });
    return nb::make_tuple(found.pivots, found.done);
}

/// The flows of a tree for these marginals; returns the sum of the negative ones.
double tree_flows(const Array<double>& p, const Array<double>& q, nb::handle tree) {
    const Index a = Index(p.size()), b = Index(q.size());
    std::vector<double> net(std::size_t(a + b));
    return with_edges(tree, a + b, [&](auto edges) { return engine::tree_flows(edges, {p.data(), q.data()}, a, b, net.data()).below; });
}

/// The dual simplex on a tree with negative flows.
nb::tuple repair(const Table& C, nb::handle tree) {
    const engine::Costs c = costs_of(C);
    const engine::Pivoted found = with_edges(tree, c.nodes(), [&](auto edges) {
        engine::Team team;
        engine::Watch watch(team);
        engine::ItemScratch scratch(c.a, c.b, watch);
        return engine::repair(c, scratch.columns_of(c), edges, scratch.simplex);
    });
    return nb::make_tuple(found.pivots, found.done);
}

/// Probabilities of low costs for each of the rows Q (m, b): what near rows are judged by.
NewArray<double> profiles(nb::handle y, const Table& W, const Run& run) {
    const engine::Costs c = costs_of(W);
    const engine::Rows rows = rows_of(y);
    require(Index(rows.states.size()) == rows.size() * c.b && states_of(rows) == c.b, "the rows must be full");
    return as_array(without_lock(run, [&](engine::Team& team) { return engine::profiles(team, rows, c); }));
}

/// The order of points Z (m, width) along a minimum spanning tree grown from their mean, and what each one is near.
nb::tuple nearest_first(const Table& Z, const Run& run) {
    const engine::Costs points = costs_of(Z);
    require(points.stride == points.b, "the points must be contiguous");
    std::vector<Index> order(std::size_t(points.a)), near(std::size_t(points.a));
    without_lock(run, [&](engine::Team& team) {
        engine::Watch watch(team);
        engine::nearest_first({points.entries, std::size_t(points.a * points.b)}, points.b, order, near, watch);
    });
    return nb::make_tuple(as_array(std::move(order)), as_array(std::move(near)));
}

// --- tables over pairs ---------------------------------------------------------------------------------------------

nb::tuple sort_keys(const Array<double>& cost, Index n_y, const Run& run) {
    require(n_y > 0 && cost.size() > 0 && Index(cost.size()) % n_y == 0, "cost needs whole rows");
    engine::Keys keys = without_lock(run, [&](engine::Team& team) { return engine::sort_keys(team, view(cost), n_y); });
    return nb::make_tuple(as_array(std::move(keys.x)), as_array(std::move(keys.y)));
}

NewArray<Index> reachable(nb::handle successors, const OutArray<bool>& seen, const Array<Index>& first, const Run& run) {
    const auto choices = nb::cast<nb::ndarray<const Index, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>>(successors.attr("choices"), false);
    const auto [n_x, n_y] = nb::cast<std::pair<Index, Index>>(successors.attr("shape"));
    const engine::PairSuccessors pairs{rows_of(successors.attr("x")), rows_of(successors.attr("y")), n_x, n_y, {choices.data(), choices.size()}};
    require(n_x > 0 && n_y > 0 && Index(seen.size()) == n_x * n_y, "seen needs one entry for every pair of states");
    require(states_of(pairs.x) <= n_x && states_of(pairs.y) <= n_y, "successors must be states");
    for (Index c = 0; c < Index(choices.size()); c += 2) {
        const Index a = pairs.choices[c], b = pairs.choices[c + 1];
        require(0 <= a && (a + 1) * n_x <= pairs.x.size() && 0 <= b && (b + 1) * n_y <= pairs.y.size(), "choices must be blocks of rows");
    }
    require_range(view(first), n_x * n_y, "the first pairs must be pairs of states");
    return as_array(without_lock(run, [&](engine::Team& team) {
        engine::Watch watch(team);
        return engine::reachable(pairs, out(seen), view(first), watch);
    }));
}

nb::tuple extremes(const Array<Index>& listed, const Array<double>& TU, const Array<double>& U) {
    require(listed.size() == 0 ? U.size() >= TU.size() : listed.size() == TU.size(), "TU needs one entry for every pair");
    require_range(view(listed), Index(U.size()), "listed must be pairs of states");
    const engine::Extremes found = engine::extremes(view(listed), view(TU), view(U));
    return nb::make_tuple(found.low, found.high, found.size());
}

nb::tuple settle(
    const Array<double>& cost, double scale, double discount, const Array<double>& U, const OutArray<double>& TU, const Run& run
) {
    require(cost.size() == U.size() && U.size() == TU.size(), "the tables must have the same size");
    const engine::Extremes found = without_lock(run, [&](engine::Team& team) {
        return engine::settle(team, {view(cost), scale, discount}, view(U), out(TU));
    });
    return nb::make_tuple(found.low, found.high, found.size());
}

void exchange(
    double middle, double shift, const OutArray<double>& U, const Array<double>& TU, const OutArray<float>& residual, const Run& run
) {
    require(U.size() == TU.size() && TU.size() == residual.size(), "the tables must have the same size");
    without_lock(run, [&](engine::Team& team) { engine::exchange(team, middle, shift, out(U), view(TU), out(residual)); });
}

void add_difference(const Array<float>& fresh, const Array<float>& old, const OutArray<double>& U, const Run& run) {
    require(fresh.size() == old.size() && old.size() == U.size(), "the tables must have the same size");
    without_lock(run, [&](engine::Team& team) { engine::add_difference(team, view(fresh), view(old), out(U)); });
}

void add_transports(nb::module_& m) {
    nb::class_<Transports>(m, "Transports")
        .def(nb::init<nb::object, nb::object, std::pair<Index, Index>>(), "items"_a, "trees"_a, "dense_from"_a)
        .def_prop_ro("dense", [](const Transports& self) { return self.dense != nullptr; })
        .def("solve", &Transports::solve, "W"_a.noconvert(), "values"_a.noconvert(), "effort"_a, "plans"_a, "run"_a)
        .def("targets", &Transports::targets<std::int32_t>, "numbers"_a.noconvert(), "targets"_a.noconvert(), "run"_a)
        .def("targets", &Transports::targets<std::int64_t>, "numbers"_a.noconvert(), "targets"_a.noconvert(), "run"_a)
        .def("plans", &Transports::plans<std::int32_t>, "targets"_a.noconvert(), "flow"_a.noconvert(), "run"_a)
        .def("plans", &Transports::plans<std::int64_t>, "targets"_a.noconvert(), "flow"_a.noconvert(), "run"_a)
        .def("edges_of", &Transports::edges_of, "k"_a)
        .def("item_flows", &Transports::item_flows, "k"_a)
        .def("potentials", &Transports::potentials, "k"_a, "W"_a.noconvert())
        .def("sum_potentials", &Transports::sum_potentials, "W"_a.noconvert(), "m"_a.noconvert(), "by_x"_a.noconvert(), "by_y"_a.noconvert(), "on_supports"_a, "run"_a);
    m.def("first_unfit", &first_unfit, "items"_a, "trees"_a, "tolerance"_a, "run"_a);
    m.def("solve_one", &solve_one, "C"_a.noconvert(), "p"_a.noconvert(), "q"_a.noconvert(), "tree"_a, "price"_a, "pot"_a.noconvert(), "run"_a);
    m.def("northwest_corner", &northwest_corner, "p"_a.noconvert(), "q"_a.noconvert(), "rows"_a.noconvert(), "cols"_a.noconvert(), "tree"_a);
    m.def("greedy", &greedy, "C"_a.noconvert(), "p"_a.noconvert(), "q"_a.noconvert(), "tree"_a);
    m.def("simplex", &simplex, "C"_a.noconvert(), "tree"_a, "price"_a, "max_pivots"_a, "pot"_a.noconvert());
    m.def("tree_flows", &tree_flows, "p"_a.noconvert(), "q"_a.noconvert(), "tree"_a);
    m.def("repair", &repair, "C"_a.noconvert(), "tree"_a);
    m.def("profiles", &profiles, "y"_a, "W"_a.noconvert(), "run"_a);
    m.def("nearest_first", &nearest_first, "Z"_a.noconvert(), "run"_a);
    m.def("sort_keys", &sort_keys, "cost"_a.noconvert(), "n_y"_a, "run"_a);
    m.def("reachable", &reachable, "successors"_a, "seen"_a.noconvert(), "first"_a.noconvert(), "run"_a);
    m.def("extremes", &extremes, "listed"_a.noconvert(), "TU"_a.noconvert(), "U"_a.noconvert());
    m.def("settle", &settle, "cost"_a.noconvert(), "scale"_a, "discount"_a, "U"_a.noconvert(), "TU"_a.noconvert(), "run"_a);
    m.def("exchange", &exchange, "middle"_a, "shift"_a, "U"_a.noconvert(), "TU"_a.noconvert(), "residual"_a.noconvert(), "run"_a);
    m.def("add_difference", &add_difference, "fresh"_a.noconvert(), "old"_a.noconvert(), "U"_a.noconvert(), "run"_a);
}

// --- certificates ------------------------------------------------------------------------------------------------

/// What is known about the plans of a list of transports: a tuple (nodes, unbalanced, clipped, by_potentials).
using PlanErrors = std::tuple<Index, double, double, bool>;

engine::PlanErrors plan_errors_of(const PlanErrors& errors) {
    const auto [nodes, unbalanced, clipped, by_potentials] = errors;
    return {nodes, unbalanced, clipped, by_potentials};
}

/// The band that a sweep proves; `change` is (low, high, size).
nb::tuple band(const std::tuple<double, double, double>& change, const PlanErrors& errors, double discount, double price) {
    const auto [low, high, size] = change;
    const engine::Band found = engine::band_of({low, high, 0.0, size}, plan_errors_of(errors), discount, price);
    return nb::make_tuple(found.shift, found.half, found.rounding);
}

/// The transport of the starts, whose rows, columns, marginals, tree and potentials are attributes of an object.
nb::tuple solve_start(nb::handle starts, const Array<double>& U, Index n_y, double price, const Run& run) {
    const auto rows = member<Array<Index>>(starts, "rows"), cols = member<Array<Index>>(starts, "cols");
    const auto p = member<Array<double>>(starts, "p"), q = member<Array<double>>(starts, "q");
    const auto pot = member<OutArray<double>>(starts, "pot");
    const Index nodes = Index(rows.size() + cols.size());
    require(rows.size() > 0 && cols.size() > 0, "both processes need a state to start in");
    require(p.size() == rows.size() && q.size() == cols.size() && Index(pot.size()) == nodes, "starts need one number for every state");
    require(n_y > 0 && U.size() % std::size_t(n_y) == 0, "a table needs full rows");
    require_range(view(rows), Index(U.size()) / n_y, "rows must be numbers of states"), require_range(view(cols), n_y, "columns must be numbers of states");
    const engine::StartValue found = with_edges(starts.attr("tree"), nodes, [&]<class Int>(engine::Tree<Int> tree) -> engine::StartValue {
        if constexpr (std::is_same_v<Int, std::int32_t>) {
            const engine::Start start{view(rows), view(cols), view(p), view(q), tree, out(pot)};
            return without_lock(run, [&](engine::Team& team) {
                engine::Watch watch(team);
                return engine::solve_start(start, view(U), n_y, price, watch);
            });
        }
        require(false, "the tree of the starts has edges of 32 bits");
        return {};
    });
    return nb::make_tuple(found.value, found.solved, found.price, found.slack);
}

using StartValue = std::tuple<double, bool, double, double>;

engine::StartValue start_value_of(const StartValue& start) {
    const auto [value, solved, price, slack] = start;
    return {value, solved, price, slack};
}

nb::tuple bounds(const StartValue& start, double half_gap, double least, double largest) {
    const engine::Bounds found = engine::bounds_of(start_value_of(start), half_gap, {least, largest});
    return nb::make_tuple(found.value, found.lower, found.upper, found.gap);
}

nb::tuple start_interval(const StartValue& start) {
    const engine::Interval found = engine::start_interval(start_value_of(start));
    return nb::make_tuple(found.low, found.high);
}

double separable_minimum(const Array<double>& delta, const Array<double>& rho_x, const Array<double>& rho_y, double discount) {
    require(delta.size() > 0 && delta.size() == rho_x.size() * rho_y.size(), "delta needs one number for every pair of states");
    return engine::separable_minimum(view(delta), view(rho_x), view(rho_y), discount);
}

nb::tuple separable_bounds(
    const Array<double>& U, const Array<double>& lower, const Array<double>& upper, double slack, const std::tuple<double, double>& start,
    const Array<double>& rho_x, const Array<double>& rho_y, double discount, double least, double largest
) {
    require(U.size() > 0 && U.size() == rho_x.size() * rho_y.size(), "tables need one number for every pair of states");
    require(lower.size() == U.size() && upper.size() == U.size(), "all tables must have the same size");
    const engine::Interval found = engine::separable_bounds(
        {view(U), view(lower), view(upper), slack}, {std::get<0>(start), std::get<1>(start)}, {view(rho_x), view(rho_y)}, discount, {least, largest}
    );
    return nb::make_tuple(found.low, found.high);
}

void add_certificates(nb::module_& m) {
    m.def("transport_rounding", [](const PlanErrors& errors) { return engine::transport_rounding(plan_errors_of(errors)); }, "errors"_a);
    m.def("band", &band, "change"_a, "errors"_a, "discount"_a, "price"_a);
    m.def("solve_start", &solve_start, "starts"_a, "U"_a.noconvert(), "n_y"_a, "price"_a, "run"_a);
    m.def("bounds", &bounds, "start"_a, "half_gap"_a, "least"_a, "largest"_a);
    m.def("start_interval", &start_interval, "start"_a);
    m.def(
        "separable_minimum", &separable_minimum, "delta"_a.noconvert(), "rho_x"_a.noconvert(), "rho_y"_a.noconvert(), "discount"_a
    );
    m.def(
        "separable_bounds", &separable_bounds, "U"_a.noconvert(), "lower"_a.noconvert(), "upper"_a.noconvert(), "slack"_a, "start"_a,
        "rho_x"_a.noconvert(), "rho_y"_a.noconvert(), "discount"_a, "least"_a, "largest"_a
    );
}

// --- evaluation --------------------------------------------------------------------------------------------------

/// Plans as rows of a matrix with `columns` columns, which belong to Python: a tuple (indptr, target, flow, chosen).
template <class Number, class Flow> std::optional<engine::Plans<Number, Flow>> plans_of(nb::handle tuple, Index columns) {
    Array<Number> target;
    if (!nb::try_cast(tuple.attr("target"), target, false)) return std::nullopt;
    const engine::Plans<Number, Flow> plans{
        view(member<Array<Index>>(tuple, "indptr")), view(target), view(member<Array<Flow>>(tuple, "flow")), view(member<Array<Index>>(tuple, "chosen")),
    };
    require(!plans.first.empty() && plans.first.front() == 0 && plans.first.back() == Index(plans.flow.size()), "indptr must go from 0 to the number of entries");
    require(std::is_sorted(plans.first.begin(), plans.first.end()), "indptr must ascend");
    require(plans.target.size() == plans.flow.size(), "target and flow must have the same size");
    bool inside = true;
    for (const Number to : plans.target) inside &= 0 <= to && Index(to) < columns;
    require(inside, "target must be numbers of pairs");
    require_range(plans.chosen, Index(plans.first.size()) - 1, "chosen must be numbers of rows");
    return plans;
}

engine::AnyPlans any_plans_of(nb::handle tuple, Index columns) {
    if (const auto plans = plans_of<std::int32_t, double>(tuple, columns)) return *plans;
    if (const auto plans = plans_of<Index, double>(tuple, columns)) return *plans;
    throw nb::type_error("target is not a contiguous array of int32 or int64");
}

/// A chain of pairs whose plans belong to Python.
struct PairChain {
    nb::object plans;  // kept alive
    Index n_rows;
    engine::PairChain core;

    PairChain(nb::object plans_, Index size) : plans(std::move(plans_)), n_rows(rows_of_pairs(plans)), core(any_plans_of(plans, size), size) {
        require(size > 0 && size < Index(std::numeric_limits<std::uint32_t>::max()), "a chain has at least one pair, and fewer than 2^32");
    }

    static Index rows_of_pairs(nb::handle plans) {
        const auto chosen = member<Array<Index>>(plans, "chosen");
        return chosen.size() > 0 ? Index(chosen.size()) : Index(member<Array<Index>>(plans, "indptr").size()) - 1;
    }

    template <class Numbers> Numbers of_pairs(Numbers values) const {
        require(Index(values.size()) == core.size(), "an array needs one number for every pair");
        return values;
    }

    /// The chain, if every pair has a plan.
    const engine::PairChain& whole() const {
        require(n_rows == core.size(), "every pair needs a plan");
        return core;
    }
};

/// Arrays of a correction, of the same size.
void require_same_size(const Array<float>& r, const OutArray<float>& one, const OutArray<float>& two) {
    require(r.size() == one.size() && one.size() == two.size(), "residual and spare arrays must have the same size");
}

/// Plans in single precision, one row for each of `size` pairs.
engine::Plans<std::int32_t, float> single_plans_of(nb::handle tuple, std::size_t size) {
    const auto plans = plans_of<std::int32_t, float>(tuple, Index(size));
    if (!plans) throw nb::type_error("target is not a contiguous array of int32");
    require(plans->first.size() == size + 1 && plans->chosen.empty(), "plans need one row for every pair");
    return *plans;
}

/// The plans of narrow trees in single precision.
engine::SinglePlans narrow_plans_of(const Transports& transports, nb::handle tuple, std::size_t size) {
    const auto target = member<OutArray<std::int32_t>>(tuple, "target");
    const auto flow = member<OutArray<float>>(tuple, "flow");
    require(transports.narrow() && Index(size) == transports.core.items.size() && transports.last_pair < Index(size), "narrow trees of all pairs are needed");
    require(Index(flow.size()) == transports.n_edges, "plans need one flow for every edge");
    require(target.size() == 0 || target.size() == flow.size(), "plans need one target for every edge, or none");
    return {out(target), out(flow)};
}

nb::tuple as_tuple(const engine::Corrected& found) { return nb::make_tuple(found.solved, int(found.in_second), found.constant, found.products); }

nb::tuple correct_plans(
    nb::handle plans, double discount, const Array<float>& r, const OutArray<float>& one, const OutArray<float>& two, double target, const Run& run
) {
    require_same_size(r, one, two);
    const auto rows = single_plans_of(plans, r.size());
    return as_tuple(without_lock(run, [&](engine::Team& team) { return engine::correct(team, rows, discount, view(r), out(one), out(two), target); }));
}

void sweep_plans(
    nb::handle plans, double discount, const Array<float>& r, const OutArray<float>& delta, const OutArray<float>& spare, Index times, const Run& run
) {
    require_same_size(r, delta, spare);
    const auto rows = single_plans_of(plans, r.size());
    without_lock(run, [&](engine::Team& team) { engine::sweep_correction(team, rows, discount, view(r), out(delta), out(spare), times); });
}

nb::tuple correct_trees(
    const Transports& transports, nb::handle plans, double discount, const Array<float>& r, const OutArray<float>& one,
    const OutArray<float>& two, double target, const Run& run
) {
    require_same_size(r, one, two);
    const engine::SinglePlans kept = narrow_plans_of(transports, plans, r.size());
    return as_tuple(without_lock(run, [&](engine::Team& team) {
        return engine::correct(team, transports.core, kept, discount, view(r), out(one), out(two), target);
    }));
}

void sweep_trees(
    const Transports& transports, nb::handle plans, double discount, const Array<float>& r, const OutArray<float>& delta,
    const OutArray<float>& spare, Index times, const Run& run
) {
    require_same_size(r, delta, spare);
    const engine::SinglePlans kept = narrow_plans_of(transports, plans, r.size());
    without_lock(run, [&](engine::Team& team) {
        engine::sweep_correction(team, transports.core, kept, discount, view(r), out(delta), out(spare), times);
    });
}

void add_evaluation(nb::module_& m) {
    nb::class_<PairChain>(m, "PairChain")
        .def(nb::init<nb::object, Index>(), "plans"_a, "size"_a)
        .def_prop_ro("products", [](const PairChain& self) { return self.core.products(); })
        .def("multiply", [](const PairChain& self, const Array<double>& v, const OutArray<double>& into, const Run& run) {
            require(Index(into.size()) <= self.n_rows, "there are not so many plans");
            without_lock(run, [&](engine::Team& team) { self.core.multiply(team, self.of_pairs(view(v)), out(into)); });
        }, "v"_a.noconvert(), "out"_a.noconvert(), "run"_a)
        .def("apply", [](const PairChain& self, double discount, bool transposed, const Array<double>& v, const OutArray<double>& into, const Run& run) {
            without_lock(run, [&](engine::Team& team) {
                self.whole().apply(team, {discount, transposed}, self.of_pairs(view(v)), self.of_pairs(out(into)));
            });
        }, "discount"_a, "transposed"_a, "v"_a.noconvert(), "out"_a.noconvert(), "run"_a)
        .def("solve", [](const PairChain& self, double discount, bool transposed, const Array<double>& source, const OutArray<double>& u, double target, Index max_iterations, const Run& run) {
            return without_lock(run, [&](engine::Team& team) {
                return self.whole().solve(team, {discount, transposed}, self.of_pairs(view(source)), self.of_pairs(out(u)), target, max_iterations);
            });
        }, "discount"_a, "transposed"_a, "source"_a.noconvert(), "u"_a.noconvert(), "target"_a, "max_iterations"_a, "run"_a)
        .def("sweep", [](const PairChain& self, double discount, bool transposed, const Array<double>& source, const OutArray<double>& u, Index times, const Run& run) {
            without_lock(run, [&](engine::Team& team) {
                self.whole().sweep(team, {discount, transposed}, self.of_pairs(view(source)), self.of_pairs(out(u)), times);
            });
        }, "discount"_a, "transposed"_a, "source"_a.noconvert(), "u"_a.noconvert(), "times"_a, "run"_a)
        .def("relax", [](const PairChain& self, double discount, const Array<double>& source, const OutArray<double>& U, const OutArray<double>& spare, double target, const Run& run) {
            require(self.core.size() == Index(member<Array<Index>>(self.plans, "indptr").size()) - 1, "pair z needs the plan in row z");
            return without_lock(run, [&](engine::Team& team) {
                return self.whole().relax(team, discount, self.of_pairs(view(source)), self.of_pairs(out(U)), self.of_pairs(out(spare)), target);
            });
        }, "discount"_a, "source"_a.noconvert(), "U"_a.noconvert(), "spare"_a.noconvert(), "target"_a, "run"_a)
        .def("mark_visited", [](const PairChain& self, const Array<double>& source, const OutArray<bool>& visited, const Run& run) {
            without_lock(run, [&](engine::Team& team) {
                engine::Watch watch(team);
                self.whole().mark_visited(self.of_pairs(view(source)), self.of_pairs(out(visited)), watch);
            });
        }, "source"_a.noconvert(), "visited"_a.noconvert(), "run"_a)
        .def("occupancy", [](const PairChain& self, double discount, const Array<double>& source, const Array<bool>& visited, const OutArray<double>& into, double target, const Run& run) {
            return without_lock(run, [&](engine::Team& team) {
                return self.whole().occupancy(team, discount, self.of_pairs(view(source)), self.of_pairs(view(visited)), self.of_pairs(out(into)), target);
            });
        }, "discount"_a, "source"_a.noconvert(), "visited"_a.noconvert(), "m"_a.noconvert(), "target"_a, "run"_a);
    m.def("correct_plans", &correct_plans, "plans"_a, "discount"_a, "r"_a.noconvert(), "one"_a.noconvert(), "two"_a.noconvert(), "target"_a, "run"_a);
    m.def("sweep_plans", &sweep_plans, "plans"_a, "discount"_a, "r"_a.noconvert(), "delta"_a.noconvert(), "spare"_a.noconvert(), "times"_a, "run"_a);
    m.def("correct_trees", &correct_trees, "transports"_a, "plans"_a, "discount"_a, "r"_a.noconvert(), "one"_a.noconvert(), "two"_a.noconvert(), "target"_a, "run"_a);
    m.def("sweep_trees", &sweep_trees, "transports"_a, "plans"_a, "discount"_a, "r"_a.noconvert(), "delta"_a.noconvert(), "spare"_a.noconvert(), "times"_a, "run"_a);
}

// --- games -------------------------------------------------------------------------------------------------------

/// A game whose arrays belong to Python.
struct Game {
    engine::Game core;
    nb::object transports, rules, moves, targets, selected;  // kept alive

    Game(nb::object transports_, nb::object rules_, nb::object moves_, nb::object targets_, nb::object selected_)
        : transports(std::move(transports_)), rules(std::move(rules_)), moves(std::move(moves_)), targets(std::move(targets_)),
          selected(std::move(selected_)) {
        const engine::Transports& list = nb::cast<const Transports&>(transports).core;
        core.items = list.items, core.trees = list.trees;
        read_rules();
        read_moves();
        read_targets();
        read_selected();
    }

    Index n_pairs() const { return core.moves.n_pairs(); }

    void read_rules() {
        core.rules = {
            view(member<Array<double>>(rules, "base")), view(member<Array<Index>>(rules, "lines")), view(member<Array<Index>>(rules, "members")),
            nb::cast<double>(rules.attr("discount")), nb::cast<bool>(rules.attr("hollow")),
        };
        const engine::View<Index> lines = core.rules.lines, members = core.rules.members;
        require(lines.size() > 1 && lines.front() == 0 && lines.back() == Index(members.size()), "lines must go from 0 to the number of members");
        require(std::adjacent_find(lines.begin(), lines.end(), std::greater_equal<>()) == lines.end(), "every line needs a member");
    }

    void read_moves() {
        core.moves = {
            out(member<OutArray<double>>(moves, "delta")), out(member<OutArray<Index>>(moves, "line")),
            out(member<OutArray<Index>>(moves, "chosen")), out(member<OutArray<double>>(moves, "value")),
        };
        const engine::Moves& read = core.moves;
        const std::size_t pairs = read.line.size(), choices = read.delta.size();
        require(pairs > 0 && choices > 0 && choices % pairs == 0, "delta needs one entry for every choice of every pair");
        require(pairs < std::size_t(std::numeric_limits<std::int32_t>::max()), "games are for fewer than 2^31 pairs");
        require(read.value.size() == pairs && read.chosen.size() == pairs + 1, "moves need one entry for every pair");
        require(core.rules.base.size() == choices && core.items.size() == Index(choices), "every choice needs a cost and a transport");
        require_range(core.rules.members, read.n_choices(), "members must be numbers of choices");
        require_range(read.line, core.rules.n_lines(), "line must be numbers of lines");
        bool own = true;
        for (std::size_t p = 0; p < pairs; ++p) own &= read.chosen[p] / read.n_choices() == Index(p) && read.chosen[p] >= 0;
        require(own, "chosen must be choices of every pair");
    }

    void read_targets() {
        core.targets = {view(member<Array<Index>>(targets, "numbers")), out(member<OutArray<std::int32_t>>(targets, "target"))};
        const engine::Targets& read = core.targets;
        std::visit([&](const auto& trees) {
            require(!trees.narrow() && trees.child.size() == read.target.size(), "targets need one entry for every edge");
        }, core.trees);
        require(core.items.n_y > 0 && Index(read.numbers.size()) % core.items.n_y == 0, "numbers need one entry for every pair of states");
        require_range(core.items.x.states, Index(read.numbers.size()) / core.items.n_y, "the states of X must be rows of the table");
        require_range(read.numbers, n_pairs() + 1, "numbers must be those of pairs");
    }

    void read_selected() {
        core.selected = {
            view(member<Array<Index>>(selected, "first")), out(member<OutArray<std::int32_t>>(selected, "target")),
            out(member<OutArray<float>>(selected, "flow")), out(member<OutArray<float>>(selected, "residual")),
        };
        const engine::Selected& read = core.selected;
        if (read.residual.empty()) return;
        const engine::View<Index> first = read.first;
        require(read.target.size() == read.flow.size(), "selected plans need one target for every flow");
        require(Index(first.size()) > n_pairs() && Index(read.residual.size()) >= n_pairs(), "selected plans need one row for every pair");
        require(first.front() == 0 && first.back() == Index(read.flow.size()) && std::is_sorted(first.begin(), first.end()), "first must ascend from 0 to the number of entries");
    }

    engine::View<double> values(const Array<double>& u) const {
        require(Index(u.size()) == n_pairs() + 1, "u needs one entry for every pair, and one more");
        return view(u);
    }
};

nb::tuple improve_pairs(Game& game, const Array<double>& W, int basis, double price, const Run& run) {
    require(W.size() == game.core.targets.numbers.size(), "the table needs one entry for every pair of states");
    require(0 <= basis && basis <= 2, "basis must be 0, 1 or 2");
    const engine::Improved done = without_lock(run, [&](engine::Team& team) {
        return engine::improve_pairs(team, game.core, view(W), engine::Basis(basis), price);
    });
    return nb::make_tuple(done.pivots, done.failed, done.clipped, done.solved);
}

void select_plans(Game& game, const Run& run) {
    require(!game.core.selected.residual.empty(), "there is no memory for selected plans");
    without_lock(run, [&](engine::Team& team) { engine::select_plans(team, game.core); });
}

nb::tuple improve_lines(Game& game, const Array<double>& u, double tie, const Run& run) {
    const engine::View<double> values = game.values(u);
    const engine::Change change = without_lock(run, [&](engine::Team& team) { return engine::improve_lines(team, game.core, values, tie); });
    return nb::make_tuple(change.low, change.high);
}

double improve_choices(Game& game, const Array<double>& u, double tie, const Run& run) {
    const engine::View<double> values = game.values(u);
    return without_lock(run, [&](engine::Team& team) { return engine::improve_choices(team, game.core, values, tie); });
}

void add_games(nb::module_& m) {
    nb::class_<Game>(m, "Game")
        .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object>(), "transports"_a, "rules"_a, "moves"_a, "targets"_a, "selected"_a)
        .def("improve_pairs", &improve_pairs, "W"_a.noconvert(), "basis"_a, "price"_a, "run"_a)
        .def("select_plans", &select_plans, "run"_a)
        .def("improve_lines", &improve_lines, "u"_a.noconvert(), "tie"_a, "run"_a)
        .def("improve_choices", &improve_choices, "u"_a.noconvert(), "tie"_a, "run"_a);
}

// --- sinkhorn ----------------------------------------------------------------------------------------------------

/// The plans of all pairs, whose arrays belong to Python.
struct GibbsPlans {
    nb::object x, y;  // tuples of arrays, kept alive
    OutArray<double> F, G;
    Array<double> W;
    engine::GibbsPlans core;

    GibbsPlans(nb::object x_, nb::object y_, const std::pair<Index, Index>& shape, OutArray<double> F_, OutArray<double> G_)
        : x(std::move(x_)), y(std::move(y_)), F(std::move(F_)), G(std::move(G_)),
          core(rows_of(x), rows_of(y), shape.first, shape.second, {out(F), out(G)}) {
        const engine::Pairs& pairs = core.pairs();
        require_range(pairs.x.states, pairs.n_x, "the states of X must be rows of the table");
        require_range(pairs.y.states, pairs.n_y, "the states of Y must be columns of the table");
        require(F.size() == pairs.x.states.size() * std::size_t(pairs.y.size()), "F needs one number for every transition of X and row of Y");
        require(G.size() == pairs.y.states.size() * std::size_t(pairs.x.size()), "G needs one number for every transition of Y and row of X");
    }

    engine::View<double> table(const Array<double>& values) const {
        require(Index(values.size()) == core.pairs().n_x * core.pairs().n_y, "a table needs one number for every pair of states");
        return view(values);
    }
    engine::Out<double> table(const OutArray<double>& values) const {
        require(Index(values.size()) == core.pairs().n_x * core.pairs().n_y, "a table needs one number for every pair of states");
        return out(values);
    }

    /// One number for every pair of rows.
    template <class Numbers> Numbers by_pair(Numbers values) const {
        require(Index(values.size()) == core.pairs().size(), "an array needs one number for every pair of rows");
        return values;
    }
    engine::Tempered tempered(const Array<double>& U, double epsilon) const {
        require(epsilon >= 0.0, "epsilon must not be negative");
        return {table(U), epsilon};
    }
    engine::GibbsPlans& with_kernel() { return require(W.is_valid(), "set_kernel comes first"), core; }
    const engine::GibbsPlans& with_kernel() const { return require(W.is_valid(), "set_kernel comes first"), core; }
    Index pair(Index k) const {
        require(0 <= k && k < core.pairs().size(), "there is no such pair");
        return k;
    }
    engine::Pair place(Index k) const { return {pair(k), core.pairs()}; }
};

/// The plans as a matrix.
struct PlanOperator {
    nb::object plans;  // kept alive
    const GibbsPlans& of;
    std::unique_ptr<engine::PlanOperator> core;

    void require_square() const {
        const engine::Pairs& pairs = of.core.pairs();
        require(pairs.x.size() == pairs.n_x && pairs.y.size() == pairs.n_y, "a system needs a row for every state");
    }
};

bool set_kernel(GibbsPlans& self, const Array<double>& W, double beta, bool share) {
    self.table(W);
    require(beta > 0.0, "beta must be positive");
    self.W = W;
    self.core.set_kernel(view(W), beta, share);
    return self.core.shared() != nullptr;
}

void weighted_potentials(
    const GibbsPlans& self, const Array<double>& U, double epsilon, const Array<double>& m, const OutArray<double>& by_x,
    const OutArray<double>& by_y, const Run& run
) {
    const engine::Pairs& pairs = self.core.pairs();
    const std::size_t on_x = pairs.x.states.size(), on_y = pairs.y.states.size();
    const std::size_t all_x = std::size_t(pairs.x.size() * pairs.n_x), all_y = std::size_t(pairs.y.size() * pairs.n_y);
    const bool supports = by_x.size() == on_x && by_y.size() == on_y;
    require(supports || (by_x.size() == all_x && by_y.size() == all_y), "sums need one number for every successor, or for every state");
    without_lock(run, [&](engine::Team& team) {
        self.core.weighted_potentials(team, self.tempered(U, epsilon), self.by_pair(view(m)), !supports, out(by_x), out(by_y));
    });
}

nb::object plan_operator(nb::object plans, bool rounded, const char* form, const Run& run) {
    using Form = engine::PlanOperator::Form;
    const std::string name = form;
    require(name == "factored" || name == "stored" || name == "recomputed", "form must be 'factored', 'stored' or 'recomputed'");
    const Form kind = name == "factored" ? Form::FACTORED : name == "stored" ? Form::STORED : Form::RECOMPUTED;
    const GibbsPlans& of = nb::cast<const GibbsPlans&>(plans);
    auto core = without_lock(run, [&](engine::Team& team) { return engine::PlanOperator::make(team, of.with_kernel(), rounded, kind); });
    if (!core) return nb::none();
    return nb::cast(new PlanOperator{std::move(plans), of, std::move(core)}, nb::rv_policy::take_ownership);
}

nb::tuple solve_independent(
    nb::handle x, nb::handle y, const Array<Index>& listed, double discount, const Array<double>& b, const OutArray<double>& u, double target,
    Index max_iterations, const Run& run
) {
    const engine::Rows rows_x = rows_of(x), rows_y = rows_of(y);
    const engine::Pairs pairs(rows_x, rows_y, rows_x.size(), rows_y.size());
    require(states_of(rows_x) <= rows_x.size() && states_of(rows_y) <= rows_y.size(), "successors must be states");
    require_range(view(listed), pairs.size(), "listed must be pairs of states");
    require(Index(b.size()) == (listed.size() > 0 ? Index(listed.size()) : pairs.size()) && b.size() == u.size(), "b and u need one number for every pair");
    const engine::Residual found = without_lock(run, [&](engine::Team& team) {
        return engine::solve_independent(team, pairs, view(listed), discount, view(b), out(u), target, max_iterations);
    });
    return nb::make_tuple(found.worst, found.products);
}

/// Apply a function of numbers to an array.
template <class Function> NewArray<double> of_every(const Array<double>& values, Function&& function) {
    std::vector<double> found(values.size());
    for (std::size_t k = 0; k < found.size(); ++k) found[k] = function(values.data()[k]);
    return as_array(std::move(found));
}

void add_sinkhorn(nb::module_& m) {
    m.def("exponentials", [](const Array<double>& t) { return of_every(t, [](double v) { return engine::exp_of(v); }); }, "t"_a.noconvert());
    m.def("logarithms", [](const Array<double>& v) { return of_every(v, [](double x) { return engine::log_of(x); }); }, "v"_a.noconvert());
    m.def("round_plan", [](const OutArray<double>& plan, const Array<double>& p, const Array<double>& q) {
        require(plan.size() == p.size() * q.size(), "a plan needs one number for every pair of successors");
        std::vector<double> row(p.size()), col(q.size());
        engine::round_plan(plan.data(), view(p), view(q), row.data(), col.data());
    }, "plan"_a.noconvert(), "p"_a.noconvert(), "q"_a.noconvert());
    nb::class_<GibbsPlans>(m, "GibbsPlans")
        .def(nb::init<nb::object, nb::object, std::pair<Index, Index>, OutArray<double>, OutArray<double>>(), "x"_a, "y"_a, "shape"_a,
             "F"_a.noconvert(), "G"_a.noconvert())
        .def("set_kernel", &set_kernel, "W"_a.noconvert(), "beta"_a, "share"_a)
        .def("scale", [](GibbsPlans& self, Index iterations, double error_wanted, const OutArray<double>& omega, const OutArray<double>& error, const Run& run) {
            const engine::Progress progress{self.by_pair(out(omega)), self.by_pair(out(error))};
            return without_lock(run, [&](engine::Team& team) { return self.with_kernel().scale(team, {iterations, error_wanted}, progress); });
        }, "iterations"_a, "target"_a, "omega"_a.noconvert(), "error"_a.noconvert(), "run"_a)
        .def("polish", [](GibbsPlans& self, double target, const OutArray<double>& error, const Run& run) {
            return without_lock(run, [&](engine::Team& team) { return self.with_kernel().polish(team, target, self.by_pair(out(error))); });
        }, "target"_a, "error"_a.noconvert(), "run"_a)
        .def("half_step", [](const GibbsPlans& self, bool columns, const OutArray<double>& into, const Run& run) {
            require(into.size() == (columns ? self.G : self.F).size(), "a half-step needs an array like F or G");
            without_lock(run, [&](engine::Team& team) { self.with_kernel().half_step(team, columns, out(into)); });
        }, "columns"_a, "out"_a.noconvert(), "run"_a)
        .def("means", [](const GibbsPlans& self, bool columns, const Array<double>& potential, const OutArray<double>& into, const Run& run) {
            require(potential.size() == (columns ? self.G : self.F).size(), "means need an array like F or G");
            without_lock(run, [&](engine::Team& team) { self.core.means(team, columns, view(potential), self.by_pair(out(into))); });
        }, "columns"_a, "potential"_a.noconvert(), "out"_a.noconvert(), "run"_a)
        .def("plan_costs", [](const GibbsPlans& self, const Array<double>& U, double epsilon, bool rounded, const OutArray<double>& into, const Run& run) {
            without_lock(run, [&](engine::Team& team) { self.with_kernel().plan_costs(team, self.tempered(U, epsilon), rounded, self.by_pair(out(into))); });
        }, "U"_a.noconvert(), "epsilon"_a, "rounded"_a, "out"_a.noconvert(), "run"_a)
        .def("dual_bounds", [](const GibbsPlans& self, const Array<double>& U, double epsilon, const OutArray<double>& into, const Run& run) {
            return without_lock(run, [&](engine::Team& team) { return self.core.dual_bounds(team, self.tempered(U, epsilon), self.by_pair(out(into))); });
        }, "U"_a.noconvert(), "epsilon"_a, "out"_a.noconvert(), "run"_a)
        .def("plan", [](const GibbsPlans& self, Index k, bool rounded) {
            const engine::Pair place = self.place(k);
            std::vector<double> plan(place.a() * place.b());
            self.with_kernel().plan(k, rounded, engine::Out<double>(plan));
            return as_array(std::move(plan));
        }, "k"_a, "rounded"_a)
        .def("potentials", [](const GibbsPlans& self, Index k, const Array<double>& U, double epsilon) {
            std::vector<double> f(self.core.pairs().n_x), g(self.core.pairs().n_y);
            self.core.potentials(self.pair(k), self.tempered(U, epsilon), engine::Out<double>(f), engine::Out<double>(g));
            return nb::make_tuple(as_array(std::move(f)), as_array(std::move(g)));
        }, "k"_a, "U"_a.noconvert(), "epsilon"_a)
        .def("weighted_potentials", &weighted_potentials, "U"_a.noconvert(), "epsilon"_a, "m"_a.noconvert(), "by_x"_a.noconvert(),
             "by_y"_a.noconvert(), "run"_a)
        .def("independent_means", [](const GibbsPlans& self, const Array<double>& V, const OutArray<double>& into, const Run& run) {
            without_lock(run, [&](engine::Team& team) { engine::independent_means(team, self.core.pairs(), self.table(V), self.by_pair(out(into))); });
        }, "V"_a.noconvert(), "out"_a.noconvert(), "run"_a)
        .def("operator", &plan_operator, "rounded"_a, "form"_a, "run"_a);
    nb::class_<PlanOperator>(m, "PlanOperator")
        .def("apply", [](const PlanOperator& self, const Array<double>& V, const OutArray<double>& into, const Run& run) {
            without_lock(run, [&](engine::Team& team) { self.core->apply(team, self.of.table(V), self.of.by_pair(out(into))); });
        }, "V"_a.noconvert(), "out"_a.noconvert(), "run"_a)
        .def("push", [](const PlanOperator& self, const Array<double>& weights, const OutArray<double>& into, const Run& run) {
            without_lock(run, [&](engine::Team& team) { self.core->push(team, self.of.by_pair(view(weights)), self.of.table(into)); });
        }, "m"_a.noconvert(), "out"_a.noconvert(), "run"_a)
        .def("solve", [](const PlanOperator& self, double discount, bool transposed, const Array<double>& b, const OutArray<double>& u, double target, Index max_iterations, const Run& run) {
            self.require_square(), self.of.table(b), self.of.table(u);
            const engine::Residual found = without_lock(run, [&](engine::Team& team) {
                return self.core->solve(team, {discount, transposed}, view(b), out(u), target, max_iterations);
            });
            return nb::make_tuple(found.worst, found.products);
        }, "discount"_a, "transposed"_a, "b"_a.noconvert(), "u"_a.noconvert(), "target"_a, "max_iterations"_a, "run"_a)
        .def("sweep", [](const PlanOperator& self, double discount, bool transposed, const Array<double>& b, const OutArray<double>& u, Index times, const Run& run) {
            self.require_square(), self.of.table(b), self.of.table(u);
            without_lock(run, [&](engine::Team& team) { self.core->sweep(team, {discount, transposed}, view(b), out(u), times); });
        }, "discount"_a, "transposed"_a, "b"_a.noconvert(), "u"_a.noconvert(), "times"_a, "run"_a);
    m.def("solve_independent", &solve_independent, "x"_a, "y"_a, "listed"_a.noconvert(), "discount"_a, "b"_a.noconvert(), "u"_a.noconvert(),
          "target"_a, "max_iterations"_a, "run"_a);
}

// --- somcot ------------------------------------------------------------------------------------------------------

/// An array of any shape, by rows.
template <class T> using AnyArray = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

template <class T> engine::Out<T> all_of(nb::handle tuple, const char* name, Index size) {
    const auto array = member<AnyArray<T>>(tuple, name);
    if (Index(array.size()) != size) throw nb::value_error((std::string(name) + " does not have the size that the chains need").c_str());
    return {array.data(), array.size()};
}

namespace somcot {

namespace core = engine::somcot;

core::Seen seen_of(nb::handle side) {
    const auto at = member<Array<Index>>(side, "at"), to = member<Array<Index>>(side, "to"), source = member<Array<Index>>(side, "source");
    const Index n = Index(at.size()) - 1, edges = Index(to.size());
    const engine::View<Index> first = view(at), sources = view(source);
    require(n > 0 && first.front() == 0 && first.back() == edges && std::is_sorted(first.begin(), first.end()), "at must ascend from 0 to the number of edges");
    require_range(view(to), n, "to must be numbers of states");
    require(Index(source.size()) == edges, "every edge needs a source");
    bool belong = true;
    for (Index s = 0; s < n; ++s)
        for (Index e = first[s]; e < first[s + 1]; ++e) belong &= sources[e] == s;
    require(belong, "the edges must be sorted by source");
    return {first, view(to), sources, all_of<double>(side, "counts", edges), all_of<double>(side, "q", edges), all_of<double>(side, "rho", n), all_of<double>(side, "initial", n)};
}

core::Rules rules_of(nb::handle rules) {
    const auto number = [&](const char* name) { return nb::cast<double>(rules.attr(name)); };
    return {
        number("discount"), number("eta"), number("beta"), number("decay"), number("decay_from"), number("anticipation"),
        nb::cast<bool>(rules.attr("memory")), number("bound"),
    };
}

core::SaddlePoint saddle_point_of(nb::handle problem) {
    const core::Seen x = seen_of(problem.attr("x")), y = seen_of(problem.attr("y"));
    return {x, y, all_of<const double>(problem, "costs", x.states() * y.states()), rules_of(problem.attr("rules"))};
}

core::Iterates iterates_of(nb::handle it, const core::SaddlePoint& problem) {
    const Index cells = problem.x.states() * problem.y.states();
    const Index of_x = problem.y.states() * problem.x.edges(), of_y = problem.x.states() * problem.y.edges();
    const auto get = [&](const char* name, Index size) { return all_of<double>(it, name, size); };
    return {
        get("U", of_x), get("W", of_y), get("L", cells), get("S", cells), get("A", of_x), get("B", of_y), get("V", cells),
        get("logit_x", cells), get("logit_y", cells), get("start", cells), get("log_start", cells), get("sums", 4 * cells),
        all_of<Index>(it, "cold", 1),
    };
}

core::Batches batches_of(nb::handle draws, const core::Seen& side) {
    const auto at = member<Array<Index>>(draws, "at"), edges = member<Array<Index>>(draws, "edges");
    const auto weights = member<Array<double>>(draws, "weights");
    const engine::View<Index> first = view(at);
    require(!first.empty() && first.front() == 0 && first.back() == Index(edges.size()) && std::is_sorted(first.begin(), first.end()), "at must ascend from 0 to the number of transitions");
    require(weights.size() == edges.size(), "every transition needs a weight");
    require_range(view(edges), side.edges(), "transitions must be numbers of edges");
    return {first, view(edges), view(weights)};
}

void iterate(nb::handle problem, nb::handle iterates, nb::handle draws_x, nb::handle draws_y, nb::handle progress, Index most_listed, const Run& run) {
    const core::SaddlePoint saddle = saddle_point_of(problem);
    const core::Iterates it = iterates_of(iterates, saddle);
    const core::Batches x = batches_of(draws_x, saddle.x), y = batches_of(draws_y, saddle.y);
    require(x.at.size() == y.at.size(), "both chains need as many minibatches");
    const core::Progress now{all_of<Index>(progress, "done", 1), all_of<double>(progress, "weight", 1), all_of<double>(progress, "last", 1)};
    without_lock(run, [&](engine::Team& team) {
        engine::Watch watch(team);
        core::iterate(saddle, it, x, y, now, most_listed, watch);
    });
}

template <auto ENTER, bool OF_X> void enter(nb::handle problem, nb::handle iterates, const Array<Index>& fresh, double occupancy, const Run& run) {
    const core::SaddlePoint saddle = saddle_point_of(problem);
    const core::Iterates it = iterates_of(iterates, saddle);
    require_range(view(fresh), (OF_X ? saddle.x : saddle.y).edges(), "fresh must be numbers of edges");
    without_lock(run, [&](engine::Team& team) {
        engine::Watch watch(team);
        ENTER(saddle, it, view(fresh), occupancy, watch);
    });
}

}  // namespace somcot

void add_somcot(nb::module_& m) {
    m.def("somcot_iterate", &somcot::iterate, "problem"_a, "iterates"_a, "draws_x"_a, "draws_y"_a, "progress"_a, "most_listed"_a, "run"_a);
    m.def("somcot_enter_x", &somcot::enter<engine::somcot::enter_x, true>, "problem"_a, "iterates"_a, "fresh"_a.noconvert(), "occupancy"_a, "run"_a);
    m.def("somcot_enter_y", &somcot::enter<engine::somcot::enter_y, false>, "problem"_a, "iterates"_a, "fresh"_a.noconvert(), "occupancy"_a, "run"_a);
}

// --- barycenters -------------------------------------------------------------------------------------------------

nb::tuple barycenters(
    nb::handle rows, const Array<double>& costs, const Array<Index>& first, const Array<Index>& states,
    const Array<double>& weights, const Array<double>& starts, double tolerance, const Run& run
) {
    engine::Averages averages{rows_of(rows), view(costs), view(first), view(states), view(weights), view(starts), 0};
    const Index size = averages.size(), n = averages.rows.size(), columns = Index(costs.size()), held = Index(starts.size());
    require(size > 0 && averages.first.front() == 0 && averages.first.back() == Index(states.size()), "first must go from 0 to the number of states");
    require(std::adjacent_find(averages.first.begin(), averages.first.end(), std::greater_equal<>()) == averages.first.end(), "every average needs a state");
    require(weights.size() == states.size(), "weights and states must have the same size");
    require_range(averages.states, n, "states must be numbers of rows");
    require(held >= size && held % size == 0, "starts needs one row for each average");
    averages.k = held / size;
    require(columns % averages.k == 0, "costs needs as many columns as starts");
    require_range(averages.rows.states, columns / averages.k, "the states of the rows must be rows of the costs");
    engine::Barycenters found = without_lock(run, [&](engine::Team& team) { return engine::barycenters(averages, tolerance, team); });
    return nb::make_tuple(as_array(std::move(found.rows)), as_array(std::move(found.gaps)));
}

void add_barycenters(nb::module_& m) {
    m.def(
        "barycenters", &barycenters, "rows"_a, "costs"_a.noconvert(), "first"_a.noconvert(), "states"_a.noconvert(),
        "weights"_a.noconvert(), "starts"_a.noconvert(), "tolerance"_a, "run"_a
    );
}

// --- small problems ----------------------------------------------------------------------------------------------

engine::Rows rows_within(nb::handle successors, Index n) {
    const engine::Rows rows = rows_of(successors);
    require(rows.size() == n, "every state needs a row");
    require_range(rows.states, n, "successors must be numbers of states");
    return rows;
}

engine::Chain chain_of(nb::handle chain) {
    const auto initial = member<Array<double>>(chain, "initial");
    const engine::Chain found{rows_within(chain.attr("successors"), Index(initial.size())), view(initial)};
    require(std::any_of(found.initial.begin(), found.initial.end(), [](double p) { return p > 0.0; }), "a chain needs a state to start in");
    return found;
}

engine::SmallProblem small_problem(nb::handle problem, bool reachable) {
    const auto cost = nb::cast<nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>>(problem.attr("cost"), false);
    const engine::SmallProblem found{
        chain_of(problem.attr("x")), chain_of(problem.attr("y")), {cost.data(), cost.size()}, nb::cast<double>(problem.attr("discount")), reachable,
    };
    require(found.n_x() + found.n_y() <= engine::MAX_STATES_OF_SMALL, "the problem is not small");
    require(Index(cost.shape(0)) == found.n_x() && Index(cost.shape(1)) == found.n_y(), "costs need one number for every pair of states");
    require(0.0 < found.discount && found.discount < 1.0, "the discount must be between 0 and 1");
    return found;
}

bool are_equal(engine::View<Index> a, engine::View<Index> b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

/// Trees of a previous problem, if it has the same pairs with the same successors: a tuple (x, y, listed, child, parent).
void take_trees(const nb::tuple& known, const engine::SmallProblem& problem, engine::SmallStart& start) {
    require(known.size() == 5, "known trees are a tuple (x, y, listed, child, parent)");
    const engine::Rows x = rows_of(known[0]), y = rows_of(known[1]);
    const bool same_x = are_equal(x.first, problem.x.rows.first) && are_equal(x.states, problem.x.rows.states);
    const bool same_y = are_equal(y.first, problem.y.rows.first) && are_equal(y.states, problem.y.rows.states);
    const auto listed = nb::cast<Array<Index>>(known[2], false);
    const std::vector<Index> pairs = problem.reachable ? engine::reachable_pairs(problem) : std::vector<Index>();
    if (!same_x || !same_y || !are_equal(view(listed), pairs)) return;
    start.child = view(nb::cast<Array<std::int8_t>>(known[3], false));
    start.parent = view(nb::cast<Array<std::int8_t>>(known[4], false));
    require(start.child.size() == start.parent.size(), "child and parent must have the same size");
}

/// A solved problem; its arrays are read from Python without copies.
struct SmallSolution {
    engine::SmallSolution found;

    nb::list history() const {
        nb::list rows;
        for (const engine::SmallStep& step : found.history)
            rows.append(nb::make_tuple(step.bounds.value, step.bounds.lower, step.bounds.upper, step.pivots, step.improvements, step.products));
        return rows;
    }
};

template <class T> nb::object view_of(const std::vector<T>& values, nb::handle owner) {
    return nb::cast(nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, owner), nb::rv_policy::reference);
}

nb::object solve_small(
    nb::handle problem, const std::optional<Array<double>>& values, const std::optional<nb::tuple>& known, bool reachable, double tol,
    double max_iterations, double seconds, const Run& run
) {
    const engine::SmallProblem asked = small_problem(problem, reachable);
    engine::SmallStart start;
    if (values) start.values = view(*values);
    require(start.values.empty() || start.values.size() == asked.cost.size(), "a table needs one number for every pair of states");
    if (known) take_trees(*known, asked, start);
    const Index most = Index(std::min(max_iterations, 1e15));
    return nb::cast(SmallSolution{without_lock(run, [&](engine::Team& team) {
        engine::Watch watch(team);
        return engine::solve_small(asked, start, {tol, most, seconds}, watch);
    })});
}

engine::ChainList chain_list(nb::handle pack) {
    const auto at = member<Array<Index>>(pack, "at"), first = member<Array<Index>>(pack, "first");
    const auto initial = member<Array<double>>(pack, "initial"), rewards = member<Array<double>>(pack, "rewards");
    const nb::object successors = pack.attr("rows");
    const auto indptr = member<Array<Index>>(successors, "indptr"), states = member<Array<Index>>(successors, "indices");
    const auto probabilities = member<Array<double>>(successors, "probabilities");
    const engine::ChainList list{view(at), view(first), {view(indptr), view(states), view(probabilities)}, view(initial), view(rewards)};
    const Index m = list.size(), n = Index(initial.size()), edges = Index(states.size());
    require(m > 0 && list.at.front() == 0 && list.at.back() == n && std::is_sorted(list.at.begin(), list.at.end()), "at must ascend from 0 to the number of states");
    require(Index(list.first.size()) == m + 1 && list.first.front() == 0 && list.first.back() == edges && std::is_sorted(list.first.begin(), list.first.end()), "first must ascend from 0 to the number of transitions");
    require(Index(indptr.size()) == n + m && Index(rewards.size()) == n && Index(probabilities.size()) == edges, "the arrays of the chains do not fit together");
    for (Index c = 0; c < m; ++c) {
        const engine::Chain chain = list.chain(c);
        const engine::View<Index> ends = chain.rows.first;
        require(ends.size() > 1 && ends.front() == 0 && ends.back() == Index(chain.rows.states.size()), "rows must go from 0 to the number of entries");
        require(std::adjacent_find(ends.begin(), ends.end(), std::greater_equal<>()) == ends.end(), "every row needs an entry");
        require_range(chain.rows.states, chain.rows.size(), "successors must be numbers of states");
        require(std::any_of(chain.initial.begin(), chain.initial.end(), [](double p) { return p > 0.0; }), "a chain needs a state to start in");
    }
    return list;
}

nb::tuple solve_many(
    nb::handle pack, const Array<Index>& pairs, const Array<double>& tables, double discount, double tol, double max_iterations,
    bool squared, const Run& run
) {
    const engine::ManyProblems asked{
        chain_list(pack), view(pairs), view(tables), squared, discount, {tol, Index(std::min(max_iterations, 1e15)), engine::INF},
    };
    const std::size_t size = pairs.size() / 2;
    require(pairs.size() % 2 == 0, "pairs are two numbers each");
    require_range(asked.pairs, asked.chains.size(), "pairs must be numbers of chains");
    require(0.0 < discount && discount < 1.0, "the discount must be between 0 and 1");
    Index cells = 0;
    for (std::size_t k = 0; k < size; ++k)
        cells += asked.chains.chain(asked.pairs[2 * k]).rows.size() * asked.chains.chain(asked.pairs[2 * k + 1]).rows.size();
    require(asked.tables.empty() || Index(asked.tables.size()) == cells, "tables need one number for every pair of states");
    std::vector<double> value(size), lower(size), upper(size);
    without_lock(run, [&](engine::Team& team) {
        engine::solve_many(team, asked, value, lower, upper);
        return 0;
    });
    return nb::make_tuple(as_array(std::move(value)), as_array(std::move(lower)), as_array(std::move(upper)));
}

void add_small_problems(nb::module_& m) {
    const auto array = [](auto field) {
        return [field](nb::handle self) { return view_of(nb::cast<const SmallSolution&>(self).found.*field, self); };
    };
    using Found = engine::SmallSolution;
    m.attr("MAX_STATES_OF_SMALL") = engine::MAX_STATES_OF_SMALL;
    nb::class_<SmallSolution>(m, "SmallSolution")
        .def_prop_ro("value", [](const SmallSolution& s) { return s.found.bounds().value; })
        .def_prop_ro("lower", [](const SmallSolution& s) { return s.found.bounds().lower; })
        .def_prop_ro("upper", [](const SmallSolution& s) { return s.found.bounds().upper; })
        .def_prop_ro("gap", [](const SmallSolution& s) { return s.found.bounds().gap; })
        .def_prop_ro("ended", [](const SmallSolution& s) { return int(s.found.ended); })
        .def_prop_ro("iterations", [](const SmallSolution& s) { return s.found.history.size(); })
        .def_prop_ro("history", &SmallSolution::history)
        .def_prop_ro("clipped", [](const SmallSolution& s) { return s.found.clipped; })
        .def_prop_ro("U", array(&Found::U))
        .def_prop_ro("listed", array(&Found::listed))
        .def_prop_ro("order_x", array(&Found::order_x))
        .def_prop_ro("order_y", array(&Found::order_y))
        .def_prop_ro("at", array(&Found::at))
        .def_prop_ro("child", array(&Found::child))
        .def_prop_ro("parent", array(&Found::parent))
        .def_prop_ro("flow", array(&Found::flow))
        .def_prop_ro("start_child", [](nb::handle self) { return view_of(nb::cast<const SmallSolution&>(self).found.start.child, self); })
        .def_prop_ro("start_parent", [](nb::handle self) { return view_of(nb::cast<const SmallSolution&>(self).found.start.parent, self); })
        .def_prop_ro("start_flow", [](nb::handle self) { return view_of(nb::cast<const SmallSolution&>(self).found.start.flow, self); })
        .def_prop_ro("start_pot", [](nb::handle self) { return view_of(nb::cast<const SmallSolution&>(self).found.start.pot, self); });
    m.def(
        "solve_small", &solve_small, "problem"_a, "values"_a.none(), "known"_a.none(), "reachable"_a, "tol"_a, "max_iterations"_a,
        "seconds"_a, "run"_a
    );
    m.def(
        "solve_many", &solve_many, "pack"_a, "pairs"_a.noconvert(), "tables"_a.noconvert(), "discount"_a, "tol"_a, "max_iterations"_a,
        "squared"_a, "run"_a
    );
}

// --- the module -----------------------------------------------------------------------------------------------------

/// Whether processor and system support the instructions of x86-64-v3 (those beyond the baseline that compilers use).
bool supports_v3() {
#if defined(__x86_64__) && defined(__GNUC__)
    unsigned a, b, c, d, state, high;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    const unsigned first = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C, second = bit_BMI | bit_AVX2 | bit_BMI2;
    if ((c & first) != first) return false;
    __asm__("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
    if ((state & 6) != 6) return false;  // the system does not save the long registers
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((b & second) != second) return false;
    return __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
#else
    return false;
#endif
}

}  // namespace

NB_MODULE(ENGINE_MODULE, m) {
    m.doc() = "The compiled engine; see engine/ in the sources.";
    m.attr("level") = ENGINE_LEVEL;
    m.def("best_level", [] { return supports_v3() ? "v3" : "baseline"; });
    nb::class_<Run>(m, "Run")
        .def("__init__", [](Run* self, int threads, OutArray<bool> stop, double time_left, double share) {
            require(threads >= 1 && stop.size() == 1, "a run needs at least one thread, and one flag");
            new (self) Run{threads, std::move(stop), Run::seconds() + time_left, share};
        }, "threads"_a, "stop"_a.noconvert(), "time_left"_a = engine::INF, "share"_a = engine::WORK_FOR_A_THREAD);
    add_refinement(m);
    add_linear(m);
    add_transports(m);
    add_certificates(m);
    add_evaluation(m);
    add_games(m);
    add_sinkhorn(m);
    add_somcot(m);
    add_barycenters(m);
    add_small_problems(m);
}
