// The Python module: arrays are checked and passed on without copies, the interpreter's lock is released, and Ctrl-C
// ends a computation. The only file that knows Python.
#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "exponential.hpp"
#include "refine.hpp"
#include "sinkhorn.hpp"
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
        }, "m"_a.noconvert(), "out"_a.noconvert(), "run"_a);
}

// --- somcot ------------------------------------------------------------------------------------------------------

void add_somcot([[maybe_unused]] nb::module_& m) {}

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
