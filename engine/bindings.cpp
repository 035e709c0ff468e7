// The Python module: arrays are checked and passed on without copies, the interpreter's lock is released, and Ctrl-C
// ends a computation. The only file that knows Python.
#include <Python.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

#include <algorithm>

#include "refine.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using engine::Index;
template <class T> using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using NewArray = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;

template <class T> engine::View<T> view(const Array<T>& array) { return {array.data(), array.size()}; }

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

/// Whether Python wants to stop: a signal such as Ctrl-C has arrived (on the main thread), and its handler has raised.
bool is_interrupted() {
    nb::gil_scoped_acquire lock;
    return PyErr_CheckSignals() != 0;
}

/// Compute without the interpreter's lock.
template <class Compute> auto without_lock(Compute&& compute) {
    try {
        nb::gil_scoped_release unlocked;
        engine::Watch watch(is_interrupted);
        return compute(watch);
    } catch (const engine::Stopped&) {
        throw nb::python_error();  // what the handler has raised
    }
}

nb::tuple refine(
    const Array<Index>& first, const Array<Index>& sources, const Array<double>& probabilities,
    const Array<Index>& classes, double tolerance
) {
    const engine::View<Index> ends = view(first);
    const Index n = Index(classes.size()), edges = Index(sources.size());
    require(n > 0 && ends.size() > 1 && (Index(ends.size()) - 1) % n == 0, "first needs one entry for each column, and one more");
    require(ends.front() == 0 && ends.back() == edges && std::is_sorted(ends.begin(), ends.end()), "first must ascend from 0 to the number of edges");
    require(Index(probabilities.size()) == edges, "probabilities and sources must have the same size");
    require_range(view(sources), n, "sources must be numbers of states");
    require_range(view(classes), n, "classes must be numbers from 0 to n - 1");
    const Index n_classes = 1 + *std::max_element(classes.data(), classes.data() + n);
    engine::Refinement found = without_lock([&](engine::Watch& watch) {
        return engine::refine({ends, view(sources), view(probabilities)}, view(classes), n_classes, tolerance, watch);
    });
    return nb::make_tuple(as_array(std::move(found.classes)), found.edges_visited);
}

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
    m.def(
        "refine", &refine, "first"_a.noconvert(), "sources"_a.noconvert(), "probabilities"_a.noconvert(),
        "classes"_a.noconvert(), "tolerance"_a
    );
}
