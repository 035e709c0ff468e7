// The Python module: arrays are checked and passed on without copies, the interpreter's lock is released, and Ctrl-C
// ends a computation. The only file that knows Python.
#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "certificates.hpp"
#include "refine.hpp"
#include "small.hpp"
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

    bool is_late() const { return seconds() >= deadline; }
    bool is_told_to_stop() const { return std::atomic_ref(*stop.data()).load(std::memory_order_relaxed); }

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
        engine::Team team(run.threads, is_stopped);
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

// --- transports --------------------------------------------------------------------------------------------------

engine::Rows rows_of(nb::handle successors) {
    const auto first = member<Array<Index>>(successors, "indptr"), states = member<Array<Index>>(successors, "indices");
    const auto probabilities = member<Array<double>>(successors, "probabilities");
    const engine::Rows rows{view(first), view(states), view(probabilities)};
    require(rows.first.size() > 1 && rows.first.front() == 0 && rows.first.back() == Index(states.size()), "indptr must go from 0 to the number of entries");
    require(std::adjacent_find(rows.first.begin(), rows.first.end(), std::greater_equal<>()) == rows.first.end(), "every row needs an entry");
    require(probabilities.size() == states.size(), "indices and probabilities must have the same size");
    return rows;
}

/// A list of transports whose arrays belong to Python.
struct Transports {
    engine::Transports core;
    nb::object items, trees;  // the tuples of arrays, kept alive

    Transports(nb::object items_, nb::object trees_) : items(std::move(items_)), trees(std::move(trees_)) {
        core.items = {
            rows_of(items.attr("x")), rows_of(items.attr("y")), nb::cast<Index>(items.attr("n_y")),
            view(member<Array<Index>>(items, "listed")), view(member<Array<Index>>(items, "order_x")), view(member<Array<Index>>(items, "order_y")),
        };
        const engine::Items& list = core.items;
        require_range(list.listed, list.x.size() * list.y.size(), "listed must be numbers of pairs of rows");
        require(list.order_x.size() == list.x.states.size() && list.order_y.size() == list.y.states.size(), "an order needs one number for every entry");
        require_range(list.y.states, list.n_y, "the states of Y must be columns of the table");
        const nb::object child = trees.attr("child");
        if (!hold<std::int8_t>(child) && !hold<std::int16_t>(child) && !hold<std::int32_t>(child))
            throw nb::type_error("edges must be contiguous arrays of int8, int16 or int32");
    }

    template <class Int> bool hold(const nb::object& child) {
        OutArray<Int> children;
        if (!nb::try_cast(child, children, false)) return false;
        const auto parents = member<OutArray<Int>>(trees, "parent");
        const auto at = member<Array<Index>>(trees, "at");
        const auto flow = member<OutArray<double>>(trees, "flow");
        const engine::Trees<Int> held{view(at), out(children), out(parents), out(flow)};
        require(held.child.size() == held.parent.size(), "child and parent must have the same size");
        if (held.narrow()) {
            require(core.items.listed.empty(), "narrow trees need all pairs of rows");
            const Index edges = held.first_edge(core.items, core.items.size() - 1) + core.items.x.length(core.items.x.size() - 1) + core.items.y.length(core.items.y.size() - 1) - 1;
            require(Index(held.child.size()) == edges, "narrow trees need a + b - 1 edges for every item");
        } else {
            require(Index(at.size()) == core.items.size() + 1 && held.flow.size() == held.child.size(), "trees need one flow for every edge");
            require(at.data()[0] == 0 && at.data()[core.items.size()] == Index(held.child.size()), "at must go from 0 to the number of edges");
        }
        core.trees = held;
        return true;
    }
};

void add_transports(nb::module_& m) {
    nb::class_<Transports>(m, "Transports").def(nb::init<nb::object, nb::object>(), "items"_a, "trees"_a);
}

// --- evaluation --------------------------------------------------------------------------------------------------

void add_evaluation([[maybe_unused]] nb::module_& m) {}

// --- games -------------------------------------------------------------------------------------------------------

void add_games([[maybe_unused]] nb::module_& m) {}

// --- sinkhorn ----------------------------------------------------------------------------------------------------

void add_sinkhorn([[maybe_unused]] nb::module_& m) {}

// --- somcot ------------------------------------------------------------------------------------------------------

void add_somcot([[maybe_unused]] nb::module_& m) {}

// --- barycenters -------------------------------------------------------------------------------------------------

void add_barycenters([[maybe_unused]] nb::module_& m) {}

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
        .def("__init__", [](Run* self, int threads, OutArray<bool> stop, double time_left) {
            require(threads >= 1 && stop.size() == 1, "a run needs at least one thread, and one flag");
            new (self) Run{threads, std::move(stop), Run::seconds() + time_left};
        }, "threads"_a, "stop"_a.noconvert(), "time_left"_a = engine::INF);
    add_refinement(m);
    add_transports(m);
    add_evaluation(m);
    add_games(m);
    add_sinkhorn(m);
    add_somcot(m);
    add_barycenters(m);
    add_small_problems(m);
}
