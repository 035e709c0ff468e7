// The Python module: arrays are checked and passed on without copies, the interpreter's lock is released, and Ctrl-C
// ends a computation. The only file that knows Python.
#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "refine.hpp"
#include "somcot.hpp"
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

void add_barycenters([[maybe_unused]] nb::module_& m) {}

// --- small problems ----------------------------------------------------------------------------------------------

void add_small_problems([[maybe_unused]] nb::module_& m) {}

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
