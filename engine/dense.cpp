#include "dense.hpp"

#include <mutex>
#include <numeric>

namespace engine {
namespace {

/// A reduced cost larger than that of any cell.
constexpr float FORBIDDEN = 1e30f;

/// Numbers that are compared as integers store their position in these low bits.
constexpr std::int32_t PLACE = 0xFFFF;

/// How many cells of a cut can be scanned before the scan takes longer than the rest of a dual pivot. Edges with larger cuts
/// leave later than their steepness suggests: this takes a few more pivots, but faster ones.
constexpr double QUICK = 5000;

/// The smallest unit of 16-bit costs, for constant tables.
constexpr double LEAST_UNIT = 1e-30;

/// The largest reduced cost in 16 bits, in units; potentials get half as much, so that no difference overflows.
constexpr std::int16_t SHORT = 16000;

/// An item that takes more primal pivots per node than this is far from its old tree. The later items of the row are then
/// assumed to be far from theirs, too.
constexpr Index FAR = 1;

/// A listed cell is worth a pivot while its reduced cost is at least this fraction of that of the first one.
constexpr double WORTH = 0.05;

/// Bounds the rounding errors of a reduced cost in single precision, relative to the numbers that it is computed from: these
/// are rounded once and added twice, which gives at most four errors of 2⁻²⁴.
constexpr double SINGLE = 0x1p-21;

/// Tolerance for the center: any nearly optimal tree will do.
constexpr double ROUGH_CENTER = 1e-9;

/// Multiples of the golden ratio modulo one fill the unit interval evenly.
constexpr double GOLDEN = 0.6180339887498949;

/// How many rows are priced at once in double precision.
constexpr Index ROWS_AT_ONCE = 4;

/// How many lines of a table are transposed at once.
constexpr Index BLOCK = 16;

constexpr Index padded(Index n) { return (n + LANES - 1) / LANES * LANES; }

ALWAYS_INLINE float negate_if(bool yes, float v) {
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) ^ (std::uint32_t(yes) << 31));
}

template <class V, class T> ALWAYS_INLINE V vector_at(const T* p) { return *reinterpret_cast<const V*>(p); }
template <class V, class T> ALWAYS_INLINE void store_at(T* p, V v) { *reinterpret_cast<V*>(p) = v; }
template <class V> ALWAYS_INLINE V least(V u, V v) { return u < v ? u : v; }

// --- scans of lines ----------------------------------------------------------------------------------------------

/// Four lines of cells, and the potential of each.
template <class T> struct FourLines {
    const T* cells[4];
    T pot[4];
};

/// best = min(best, cells - pot) over the four lines; `first` of a scan, there is no best yet.
template <class V, class T> ALWAYS_INLINE void scan_four(const FourLines<T>& lines, bool first, Index width, T* best) {
    const T *one = lines.cells[0], *two = lines.cells[1], *three = lines.cells[2], *four = lines.cells[3];
    const V f = V{} + lines.pot[0], g = V{} + lines.pot[1], h = V{} + lines.pot[2], e = V{} + lines.pot[3];
    constexpr Index STEP = Index(sizeof(V) / sizeof(T));
    const auto of_lines = [=](Index c) {
        const V u = least<V>(vector_at<V>(one + c) - f, vector_at<V>(two + c) - g);
        return least<V>(u, least<V>(vector_at<V>(three + c) - h, vector_at<V>(four + c) - e));
    };
    if (first)
        for (Index c = 0; c < width; c += STEP) store_at<V>(best + c, of_lines(c));
    else
        for (Index c = 0; c < width; c += STEP) store_at<V>(best + c, least<V>(vector_at<V>(best + c), of_lines(c)));
}

/// Potentials as 16-bit integers, clipped so that differences cannot overflow; n is rounded up to a multiple of N_FLOATS.
ALWAYS_INLINE void to_units(const float* pot, float per_unit, Index n, std::int32_t* units) {
    const Floats high = Floats{} + float(SHORT / 2), low = -high;
    for (Index k = 0; k < n; k += N_FLOATS) {
        const Floats value = vector_at<Floats>(pot + k) * per_unit, above = value > low ? value : low;
        store_at<Ints>(units + k, __builtin_convertvector(least<Floats>(above, high), Ints));
    }
}

/// relative = pot - base in single precision; returns the largest absolute value.
ALWAYS_INLINE double to_single(const double* pot, const double* base, Index n, float* relative) {
    Doubles low = {}, high = {};
    Index v = 0;
    for (; v + N_DOUBLES <= n; v += N_DOUBLES) {
        const Doubles difference = doubles_at(pot + v) - doubles_at(base + v);
        store_at<HalfFloats>(relative + v, __builtin_convertvector(difference, HalfFloats));
        low = least<Doubles>(difference, low);
        high = difference > high ? difference : high;
    }
    double largest = 0.0;
    for (Index k = 0; k < N_DOUBLES; ++k) largest = std::max({largest, -low[k], high[k]});
    for (; v < n; ++v) {
        const double difference = pot[v] - base[v];
        relative[v] = float(difference), largest = std::max(largest, std::abs(difference));
    }
    return largest;
}

/// The position with the least best - pot, in units; the lowest bits of a cost store its position.
///
/// Rounding to units may make a cost negative by less than two units, so two units are added.
ALWAYS_INLINE Index place_of_least(const std::int16_t* best, float per_unit, const float* pot, Index width) {
    const std::int32_t low = std::int32_t(std::bit_ceil(std::uint32_t(width))) - 1;
    const Ints high = Ints{} + ~low;
    const Floats scale = Floats{} + per_unit, two = Floats{} + 2.0f, zero = {};
    Ints found = Ints{} + std::numeric_limits<std::int32_t>::max(), at = {};
    for (Index k = 0; k < N_FLOATS; ++k) at[k] = std::int32_t(k);
    for (Index c = 0; c < width; c += N_FLOATS) {
        const Floats cells = __builtin_convertvector(vector_at<HalfShorts>(best + c), Floats);
        const Floats value = cells - vector_at<Floats>(pot + c) * scale + two;
        const Ints cost = (std::bit_cast<Ints>(value > zero ? value : zero) & high) | at;
        found = least<Ints>(cost, found);
        at += std::int32_t(N_FLOATS);
    }
    std::int32_t smallest = found[0];
    for (Index k = 1; k < N_FLOATS; ++k) smallest = std::min(smallest, found[k]);
    return smallest & low;
}

/// Cells as integers, from single precision.
void shorten(const float* cells, float per_unit, Index n, std::int16_t* into) {
    constexpr float LOW = -SHORT / 2, HIGH = SHORT;
    for (Index c = 0; c < n; ++c) {
        const float units = cells[c] * per_unit, low = units > LOW ? units : LOW;
        into[c] = std::int16_t(std::int32_t(low < HIGH ? low : HIGH));
    }
}

/// Compute the potentials of a tree, with zero at the root, and the costs of its edges.
template <class Int> ALWAYS_INLINE void potentials_of(Tree<Int> tree, const Shared& s, DenseTools& tools) {
    const Costs c = s.costs();
    double *pot = tools.work.pot, *costs = tools.costs.data();
    for (Index k = 0; k < tree.edges; ++k) costs[k] = cost_of(c, tree.child[k], tree.parent[k]);
    pot[tree.parent[0]] = 0.0;
    for (Index k = 0; k < tree.edges; ++k) pot[tree.child[k]] = costs[k] - pot[tree.parent[k]];
}

// --- the dual simplex --------------------------------------------------------------------------------------------

/// Update the score of the edge above node v, (negative flow)² / (n √(1 + cells / QUICK)); the largest one leaves.
///
/// The smaller side of the cut has n nodes, and their lines have these cells; flow² / n is largest for the steepest edge.
/// Nonnegative floating-point numbers have the same order as their bits read as integers. The lowest bits store the node, so
/// that one pass finds the largest score and where it is.
ALWAYS_INLINE void rate(Node v, DualWork& w, std::int32_t* score, const double* weight) {
    const double flow = w.flow[v] + TINY_FLOW, lack = flow - std::abs(flow);  // twice the negative part, without a branch
    const float steepness = float(lack * lack * weight[w.size[v]]);
    score[v] = (std::bit_cast<std::int32_t>(steepness) & ~PLACE) | std::int32_t(v);
}

/// Convert an edge list (parents first) to a threaded tree with the flows of these marginals, which may be negative.
/// Returns the root.
template <class Int> Node load(Tree<Int> tree, Marginals m, const double* pot, const Shared& s, DenseTools& tools) {
    DualWork& w = tools.dual;
    const Index a = s.a, b = s.b, A = s.A, gap = A - a, edges = tree.edges;
    const auto node = [=](Index v) { return Node(v + (v >= a ? gap : 0)); };
    Link* t = w.t;
    Node* order = w.side.data();
    std::int32_t* next = tools.work.block;  // the next free position in preorder within each subtree, by plain numbers
    for (Index i = 0; i < a; ++i) w.size[i] = 1, w.flow[i] = m.p[i];
    for (Index j = 0; j < b; ++j) w.size[A + j] = 1, w.flow[A + j] = -m.q[j];
    for (Index k = edges - 1; k >= 0; --k) {
        const Node u = node(tree.parent[k]), v = node(tree.child[k]);
        t[v].parent = u, w.size[u] += w.size[v], w.flow[u] += w.flow[v];
    }
    for (Index v = A; v < A + b; ++v) w.flow[v] = -w.flow[v];
    const Node root = node(tree.parent[0]);
    t[root].parent = root, t[root].last = Node(edges), w.flow[root] = 0.0;
    order[0] = root, next[tree.parent[0]] = 1;
    for (Index k = 0; k < edges; ++k) {
        const Node v = node(tree.child[k]);
        const std::int32_t at = next[tree.parent[k]], size = w.size[v];
        order[at] = v, t[v].last = Node(at + size - 1);
        next[tree.parent[k]] = at + size, next[tree.child[k]] = at + 1;
    }
    Node before = order[edges];
    std::int32_t* score = w.score.data();
    const double* weight = w.weight.data();
    for (Index k = 0; k <= edges; ++k) {
        const Node v = order[k];
        t[before].next = v, t[v].previous = before, t[v].last = order[t[v].last];
        before = v;
        rate(v, w, score, weight);
    }
    float* relative = w.pot.data();
    for (Index i = 0; i < a; ++i) relative[i] = float(pot[i] - s.base[i]);
    for (Index j = 0; j < b; ++j) relative[A + j] = float(pot[a + j] - s.base[a + j]);
    return root;
}

/// Convert the threaded tree to an edge list in preorder.
template <class Int> void unload(Tree<Int> tree, Node root, const Shared& s, const DualWork& w) {
    const Index a = s.a, gap = s.A - a;
    const auto plain = [=](Node v) { return Int(Index(v) - (v >= a ? gap : 0)); };
    Node v = root;
    for (Index k = 0; k < tree.edges; ++k) {
        v = w.t[v].next;
        tree.child[k] = plain(v), tree.parent[k] = plain(w.t[v].parent), tree.flow[k] = std::max(w.flow[v], 0.0);
    }
}

/// The node below the edge that leaves; NO_NODE if no flow is negative.
ALWAYS_INLINE Index leaving_edge(const std::int32_t* score, Index n) {
    Ints one = {}, two = {};
    static_assert(LANES % (2 * N_FLOATS) == 0);
    for (Index v = 0; v < n; v += 2 * N_FLOATS) {
        const Ints here = vector_at<Ints>(score + v), there = vector_at<Ints>(score + v + N_FLOATS);
        one = here > one ? here : one;
        two = there > two ? there : two;
    }
    one = two > one ? two : one;
    std::int32_t most = one[0];
    for (Index k = 1; k < N_FLOATS; ++k) most = std::max(most, one[k]);
    return most > PLACE ? most & PLACE : NO_NODE;
}

/// The smaller side of a cut.
struct Side {
    Index nodes, lines;
    bool rows;  // whether the lines are rows
};

/// List the nodes on the smaller side of the cut above `out`, and those whose lines can carry flow back across it.
///
/// Within the subtree of `out` these are rows if `out` is a column and columns otherwise; on the other side it is the reverse.
ALWAYS_INLINE Side side_of(Node out, const Shared& s, DualWork& w) {
    const Link* t = w.t;
    const Index A = s.A;
    Index n = w.size[out];
    Node v = out, u = t[out].last;
    bool rows = out >= A;
    if (2 * n > s.nodes()) n = s.nodes() - n, v = t[u].next, u = t[out].previous, rows = !rows;
    Node *side = w.side.data(), *lines = w.lines.data();
    float *pot = w.pot.data(), *side_pot = w.side_pot.data(), *line_pot = w.line_pot.data();
    const Node first_column = Node(A);
    Index m = 0;
    const Index top = s.A + s.B - 1;
    Index end = top;
    const auto take = [&](Index k, Node node, Index at) {
        const float own = pot[node];
        side[k] = lines[at] = node, side_pot[k] = line_pot[at] = own;
        pot[node] = -FORBIDDEN;
        return Index((node < first_column) == rows);
    };
    // Each node is known only once the one before it is loaded, so going from both ends halves the wait. The lines found from
    // the far end are collected at the end of the list.
    for (Index k = 0; k < n / 2; ++k) {
        m += take(2 * k, v, m), end -= take(2 * k + 1, u, end);
        v = t[v].next, u = t[u].previous;
    }
    if (n % 2) m += take(n - 1, v, m);
    for (Index k = end + 1; k <= top; ++k, ++m) lines[m] = lines[k], line_pot[m] = line_pot[k];
    return {n, m, rows};
}

/// A number with the order of `value`, then of `at`, which is in its lower half.
ALWAYS_INLINE std::int64_t ranked(float value, std::uint32_t at) {
    const std::int32_t bits = std::bit_cast<std::int32_t>(value);
    return std::int64_t(bits ^ (bits >> 31 & std::numeric_limits<std::int32_t>::max())) << 32 | at;
}

/// A cell across the cut.
struct Crossing {
    Node line, end;  // its nodes on the smaller side and across the cut
    float reduced;
};

/// Find the cell of least reduced cost between the lines and the other side of the cut.
///
/// The other end is found with 16-bit costs, so the cell may not be exactly the least one; the line and the reduced cost are
/// then computed in single precision.
ALWAYS_INLINE Crossing crossing_cell(const Side& side, const Shared& s, DualWork& w, float per_unit) {
    const Index width = side.rows ? s.B : s.A, first = side.rows ? 0 : s.A, across = side.rows ? s.A : 0;
    const std::int16_t* cells = side.rows ? s.short_rows.data() : s.short_columns.data();
    Node* lines = w.lines.data();
    float* line_pot = w.line_pot.data();
    std::int32_t* shift = w.shift.data();
    std::int16_t* best = w.best.data();
    for (Index k = side.lines; k < side.lines + 3; ++k) lines[k] = lines[k - 1], line_pot[k] = line_pot[k - 1];  // a multiple of four
    to_units(line_pot, per_unit, side.lines + 3, shift);
    for (Index k = 0; k < side.lines; k += 4) {
        FourLines<std::int16_t> four;
        for (Index l = 0; l < 4; ++l) {
            four.cells[l] = cells + (lines[k + l] - first) * width;
            four.pot[l] = std::int16_t(shift[k + l]);
        }
        scan_four<Shorts>(four, k == 0, width, best);
    }
    const float* across_pot = w.pot.data() + across;
    const Index place = place_of_least(best, per_unit, across_pot, width);
    const float* column = (side.rows ? s.by_columns.data() : s.by_rows.data()) + place * (side.rows ? s.A : s.B) - first;
    std::int64_t found = std::numeric_limits<std::int64_t>::max();
    for (Index k = 0; k < side.lines; ++k) found = std::min(found, ranked(column[lines[k]] - line_pot[k], std::uint32_t(k)));
    const std::uint32_t at = std::uint32_t(found);
    return {lines[at], Node(place + across), column[lines[at]] - line_pot[at] - across_pot[place]};
}

/// Remove the edge above `out` and attach its subtree by the node `bottom` to a new parent.
///
/// Like `pivot` of simplex.hpp, but flows and sizes above both parents are updated in one walk. It uses selections instead of
/// branches, which would be unpredictable.
ALWAYS_INLINE void move_subtree(Node out, Node bottom, Node new_parent, Index A, DualWork& w) {
    Link* t = w.t;
    std::int32_t* score = w.score.data();
    const double* weight = w.weight.data();
    const std::int32_t n = w.size[out];
    const double amount = -w.flow[out];
    const Node before = t[out].previous;
    Node last = t[out].last, u = t[out].parent, v = new_parent;
    const bool rows_lose = out >= A;
    shift_flow(bottom, u, amount, w);
    join(before, t[last].next, t);
    end_with(u, last, before, t);
    while (u != v) {
        const bool old = w.size[u] < w.size[v];
        const Node node = old ? u : v;
        w.flow[node] += engine::negate_if(((node < A) == rows_lose) == old, amount);
        w.size[node] += old ? -n : n;
        rate(node, w, score, weight);
        const Node up = t[node].parent;
        u = old ? up : u, v = old ? v : up;
    }
    last = turn(out, bottom, new_parent, amount, w);
    for (Node node = out; node != new_parent; node = t[node].parent) rate(node, w, score, weight);
    join(last, t[new_parent].next, t);
    join(new_parent, bottom, t);
    end_with(new_parent, new_parent, last, t);
}

/// Dual pivots until no flow is negative.
Pivoted repair_loaded(const Shared& s, DenseTools& tools) {
    DualWork& w = tools.dual;
    Watch& watch = tools.watch();
    float* pot = w.pot.data();
    const float per_unit = float(1.0 / s.unit);
    const Index n = s.A + s.B;
    for (Index pivots = 0; pivots < 3 * s.nodes(); ++pivots) {
        const Index lacking = leaving_edge(w.score.data(), n);
        if (lacking == NO_NODE) return {pivots, true};
        const Node out = Node(lacking);
        const Side side = side_of(out, s, w);
        if (side.lines == 0) break;
        const Crossing cell = crossing_cell(side, s, w, per_unit);
        if (!(cell.reduced < FORBIDDEN / 2)) break;
        const float fall = side.rows ? cell.reduced : -cell.reduced;  // of the columns' potentials
        for (Index k = 0; k < side.nodes; ++k) {
            const Node v = w.side.data()[k];
            pot[v] = w.side_pot.data()[k] + negate_if(v >= s.A, fall);
        }
        const bool within = side.rows == (out >= s.A);
        move_subtree(out, within ? cell.line : cell.end, within ? cell.end : cell.line, s.A, w);
        watch.spend(n + side.lines * s.B / 4);
    }
    return {3 * s.nodes(), false};
}

// --- the primal simplex ------------------------------------------------------------------------------------------

/// Which of ROWS_AT_ONCE rows from i on have a reduced cost below -tol.
struct RowsBelow {
    bool row[ROWS_AT_ONCE];
};

ALWAYS_INLINE RowsBelow rows_below(const Costs& c, Index i, const double* pot, double tol) {
    const double* other = pot + c.a;
    Longs below[ROWS_AT_ONCE] = {};
    const double* line[ROWS_AT_ONCE];
    double level[ROWS_AT_ONCE];
    for (Index k = 0; k < ROWS_AT_ONCE; ++k) line[k] = c.row(i + k), level[k] = pot[i + k] - tol;
    Index j = 0;
    for (; j + N_DOUBLES <= c.b; j += N_DOUBLES) {
        const Doubles here = doubles_at(other + j);
        for (Index k = 0; k < ROWS_AT_ONCE; ++k) below[k] |= doubles_at(line[k] + j) - here < Doubles{} + level[k];
    }
    RowsBelow found;
    for (Index k = 0; k < ROWS_AT_ONCE; ++k) {
        found.row[k] = any_of(below[k]);
        for (Index rest = j; rest < c.b; ++rest) found.row[k] |= line[k][rest] - other[rest] < level[k];
    }
    return found;
}

/// A position and how far its reduced cost is below -tol; NO_NODE if none is.
struct Gain {
    Index at;
    double excess;
};

constexpr Index FIRST_EIGHT[] = {0, 1, 2, 3, 4, 5, 6, 7};

/// The cell of row i that is farthest below -tol; the first one of several.
ALWAYS_INLINE Gain best_of_row(const Costs& c, Index i, const double* pot, double tol) {
    const double *line = c.row(i), *other = pot + c.a, level = pot[i] - tol;
    constexpr Index PARTS = 8 / N_DOUBLES;
    Doubles most[PARTS] = {};
    Longs at[PARTS] = {}, here[PARTS];
    for (Index k = 0; k < PARTS; ++k) here[k] = vector_at<Longs>(FIRST_EIGHT + k * N_DOUBLES);
    Index j = 0;
    for (; j + 8 <= c.b; j += 8)
        for (Index k = 0; k < PARTS; ++k) {
            const Index first = j + k * N_DOUBLES;
            const Doubles excess = level - (doubles_at(line + first) - doubles_at(other + first));
            const Longs more = excess > most[k];
            most[k] = more ? excess : most[k];
            at[k] = more ? here[k] : at[k];
            here[k] += 8;
        }
    for (Index k = 1; k < PARTS; ++k) {
        const Longs better = (most[k] > most[0]) | ((most[k] == most[0]) & (at[k] < at[0]));
        most[0] = better ? most[k] : most[0];
        at[0] = better ? at[k] : at[0];
    }
    Gain found{NO_NODE, 0.0};
    for (Index k = 0; k < N_DOUBLES; ++k)
        if (most[0][k] > found.excess || (most[0][k] == found.excess && found.at > at[0][k])) found = {at[0][k], most[0][k]};
    for (; j < c.b; ++j) {
        const double excess = level - (line[j] - other[j]);
        if (excess > found.excess) found = {j, excess};
    }
    return found;
}

/// Write the best cell of row i; returns whether there is one below -tol.
ALWAYS_INLINE bool find_cell(const Costs& c, Index i, const double* pot, double tol, Cell& cell) {
    const Index j = best_of_row(c, i, pot, tol).at;
    if (j == NO_NODE) return false;
    cell = {Node(i), Node(c.a + j), c.row(i)[j]};
    return true;
}

/// The listed cell of least reduced cost.
ALWAYS_INLINE Gain best_listed(const CellList& list, const double* pot, double tol) {
    Gain found{NO_NODE, 0.0};
    for (Index k = 0; k < list.size; ++k) {
        const Cell& cell = list.cells[k];
        const double excess = (pot[cell.row] - tol) - (cell.cost - pot[cell.column]);
        if (excess > found.excess) found = {k, excess};
    }
    return found;
}

/// Pivot on listed cells, best first, while they are worth it; returns the number of pivots.
///
/// After a pivot the row of the cell gets a new entry. The function returns when the best remaining cell gains much less than
/// the first one did, because cells that are not listed may now be better.
Index use_list(const Costs& c, double tol, Index max_pivots, DenseTools& tools) {
    Workspace& w = tools.work;
    CellList& list = tools.list;
    Index pivots = 0;
    double enough = 0.0;
    while (list.size > 0 && pivots < max_pivots) {
        const Gain best = best_listed(list, w.pot, tol);
        if (best.at == NO_NODE || best.excess < enough) break;
        enough = std::max(enough, WORTH * best.excess);
        Cell& cell = list.cells[best.at];
        const Cycle cycle = find_cycle(cell.row, cell.column, c.a, w);
        pivot(cycle, w.flow[cycle.out], c, w);
        ++pivots;
        if (!find_cell(c, cell.row, w.pot, tol, cell)) cell = list.cells[--list.size];
        w.watch->spend(c.nodes() + list.size);
    }
    return pivots;
}

}  // namespace

void list_all(const Shared& s, double tol, DenseTools& tools) {
    const Costs c = s.costs();
    CellList& list = tools.list;
    const double* pot = tools.work.pot;
    list.size = 0;
    for (Index i = 0; i < c.a; i += ROWS_AT_ONCE) {
        const Index n = std::min(ROWS_AT_ONCE, c.a - i);
        const RowsBelow below = n == ROWS_AT_ONCE ? rows_below(c, i, pot, tol) : RowsBelow{{true, true, true, true}};
        for (Index k = 0; k < n; ++k)
            if (below.row[k]) list.size += find_cell(c, i + k, pot, tol, list.cells[list.size]);
    }
    tools.watch().spend(c.a * c.b);
}

/// Rows within the rounding errors are looked at, too, if none must be missed. Where these errors are not small compared with
/// `tol`, this would be all rows, and `list_all` is used.
void list_fast(const Shared& s, double tol, bool sure, DenseTools& tools) {
    const Costs c = s.costs();
    CellList& list = tools.list;
    const double* pot = tools.work.pot;
    float *relative = list.pot.data(), *best = list.best.data();
    const double largest = to_single(pot, s.base.data(), c.nodes(), relative);
    const double error = sure ? SINGLE * (SHORT * s.unit + largest + tol) : 0.0;
    if (error > tol / 2) return list_all(s, tol, tools);
    for (Index j = 0; j < c.b; j += 4) {
        FourLines<float> four;
        for (Index l = 0; l < 4; ++l) {
            const Index column = std::min(j + l, c.b - 1);
            four.cells[l] = s.by_columns.data() + column * s.A, four.pot[l] = relative[c.a + column];
        }
        scan_four<Floats>(four, j == 0, s.A, best);
    }
    const float level = float(tol - error);
    list.size = 0;
    for (Index i = 0; i < c.a; ++i)
        if (best[i] < relative[i] - level) list.size += find_cell(c, i, pot, tol, list.cells[list.size]);
    tools.watch().spend(c.a * c.b / 2);
}

template <class Int> Pivoted repair_dense(Tree<Int> tree, Marginals m, const Shared& s, DenseTools& tools) {
    potentials_of(tree, s, tools);
    const Node root = load(tree, m, tools.work.pot, s, tools);
    const Pivoted found = repair_loaded(s, tools);
    if (found.done) unload(tree, root, s, tools.dual);
    return found;
}

template <class Int> Pivoted optimize_dense(Tree<Int> tree, const Shared& s, DenseTools& tools, double tol, Index max_pivots) {
    const Costs c = s.costs();
    Workspace& w = tools.work;
    potentials_of(tree, s, tools);
    list_fast(s, tol, true, tools);
    if (tools.list.size == 0) return {0, true};
    const Node root = unpack(tree, w);
    Index pivots = 0;
    while (pivots < max_pivots) {
        pivots += use_list(c, tol, max_pivots - pivots, tools);
        list_fast(s, tol, false, tools);
        if (tools.list.size > 0) continue;
        pack(tree, w, root);
        potentials_of(tree, s, tools);  // removes the rounding errors of many updates
        list_fast(s, tol, true, tools);
        if (tools.list.size == 0) return {pivots, true};
    }
    pack(tree, w, root);
    potentials_of(tree, s, tools);
    return {pivots, false};
}

#define INSTANTIATE(Int)                                                                       \
    template Pivoted repair_dense(Tree<Int>, Marginals, const Shared&, DenseTools&);           \
    template Pivoted optimize_dense(Tree<Int>, const Shared&, DenseTools&, double, Index);
INSTANTIATE(std::int8_t)
INSTANTIATE(std::int16_t)
INSTANTIATE(std::int32_t)
#undef INSTANTIATE

// --- items -------------------------------------------------------------------------------------------------------

namespace {

/// Solves the items of one row of X after another. An item far from its own tree starts from that of a similar item.
template <class Int> class RowSolver {
  public:
    RowSolver(const Items& items, const Trees<Int>& trees, Shared& shared, const Effort& effort, Out<double> values, Watch& watch)
        : items_(items), trees_(trees), shared_(shared), effort_(effort), values_(values), tools_(shared, watch) {}

    void solve_row(Index i) {
        far_ = has_hub_ = false;
        row_ = i;
        for (const Index j : shared_.order) solve(j);
    }

    const Swept& swept() const { return swept_; }

  private:
    const Items& items_;
    const Trees<Int>& trees_;
    Shared& shared_;
    const Effort& effort_;
    Out<double> values_;
    DenseTools tools_;
    Swept swept_;
    Index row_ = 0;
    bool far_ = false;  // whether the items of the row are assumed to be far from their trees
    bool has_hub_ = false;

    Index item(Index j) const { return row_ * items_.y.size() + j; }
    Tree<Int> tree_of(Index j) const { return trees_.tree(items_, item(j), shared_.nodes() - 1, nullptr); }
    const double* p() const { return items_.x.probabilities.data() + row_ * shared_.a; }
    const double* q(Index j) const { return items_.y.probabilities.data() + j * shared_.b; }

    void first_basis(Marginals m, Index j, auto tree) const {
        const Index *order_p = items_.order_x.data() + row_ * shared_.a, *order_q = items_.order_y.data() + j * shared_.b;
        northwest_corner(m, order_p, order_q, shared_.a, shared_.b, tree);
    }

    void solve(Index j) {
        const Costs c = shared_.costs();
        const Marginals m{p(), q(j)};
        const Tree<Int> tree = tree_of(j);
        const double missing = effort_.slack.empty() ? 0.0 : effort_.slack[item(j)];
        const double price = std::max(effort_.price, COST_OF_MISSING_FLOW * missing);
        bool own = effort_.basis == Basis::FEASIBLE && !far_, moved = false;
        Pivoted found{0, false};
        if (effort_.basis == Basis::OTHER) {
            const auto [below, clipped] = tree_flows(tree, m, c.a, c.b, tools_.work.net);
            own = below == 0.0;
            if (own) {
                swept_.clipped = std::max(swept_.clipped, clipped);
            } else if (-below <= missing && is_priced_out(c, tree, tools_.work.pot, price)) {
                values_[item(j)] = tree_value(tree, c);
                return;
            } else if (-below <= STALE) {
                const Pivoted repaired = repair_dense(tree, m, shared_, tools_);
                swept_.pivots += repaired.pivots, own = moved = repaired.done;
            }
        } else if (effort_.basis == Basis::NONE && !far_) {
            first_basis(m, j, tree);
            own = true;
        }
        if (own) {
            found = optimize_dense(tree, shared_, tools_, price, FAR * c.nodes());
            swept_.pivots += found.pivots, moved = moved || found.pivots > 0;
        }
        if (!found.done) {
            found = solve_from_similar(j, m, tree, price);
            far_ = moved = true;
        }
        if (moved) swept_.clipped = std::max(swept_.clipped, true_flows(tree, m, c.a, c.b, tools_.work.net));
        swept_.failed += !found.done;
        values_[item(j)] = dot(tree.flow, tools_.costs.data(), tree.edges);
    }

    /// Start from the tree of the near row, or from the hub.
    Pivoted solve_from_similar(Index j, Marginals m, Tree<Int> tree, double price) {
        if (!has_hub_) solve_from(shared_.center(), tools_.hub(), {m.p, shared_.mean.data()}, j, price);
        has_hub_ = true;
        const Index near = shared_.near[j];
        return near == NO_NODE ? solve_from(tools_.hub(), tree, m, j, price) : solve_from(tree_of(near), tree, m, j, price);
    }

    /// Find the optimal tree for these marginals, starting from `source` if possible.
    template <class From, class To> Pivoted solve_from(Tree<From> source, Tree<To> tree, Marginals m, Index j, double price) {
        std::copy(source.child, source.child + source.edges, tree.child);
        std::copy(source.parent, source.parent + source.edges, tree.parent);
        const Pivoted repaired = repair_dense(tree, m, shared_, tools_);
        if (!repaired.done) first_basis(m, j, tree);
        const Pivoted found = optimize_dense(tree, shared_, tools_, price, 50 * shared_.nodes() * shared_.nodes());
        swept_.pivots += repaired.pivots + found.pivots;
        return found;
    }
};

}  // namespace

// --- shared data -------------------------------------------------------------------------------------------------

Shared::Shared(Index rows, Index columns, Index rows_of_y)
    : a(rows), b(columns), A(padded(rows)), B(padded(columns)), table(a * B), by_rows(A * B, FORBIDDEN), by_columns(B * A, FORBIDDEN),
      short_rows(a * B, SHORT), short_columns(b * A, SHORT), base(std::size_t(a + b)), mean(std::size_t(b)),
      child(std::size_t(a + b - 1)), parent(child.size()), flow(child.size()), order(std::size_t(rows_of_y)),
      near(std::size_t(rows_of_y), NO_NODE) {}

DualWork::DualWork(const Shared& s)
    : links(s.A + s.B), sizes(s.A + s.B), flows(s.A + s.B), score(s.A + s.B), pot(s.A + s.B, -FORBIDDEN),
      side(s.A + s.B), side_pot(s.A + s.B), lines(s.A + s.B + LANES), line_pot(s.A + s.B + LANES), shift(s.A + s.B + LANES), best(std::max(s.A, s.B)), weight(std::size_t(s.nodes() + 1)) {
    t = links.data(), size = sizes.data(), flow = flows.data();
    for (Index n = 0; n <= s.nodes(); ++n) {
        const double least = double(std::max<Index>(std::min(n, s.nodes() - n), 1));
        weight[n] = 0.25 / (least * std::sqrt(1.0 + least * double(std::max(s.a, s.b)) / QUICK));
    }
}

namespace {

/// The costs minus the base potentials, by rows and by columns, in single precision and in 16 bits.
void reduce_costs(Team& team, Shared& s) {
    const double work = double(s.a * s.b);
    std::mutex guard;
    double most = 0.0;
    split(team, s.a, work, [&](Index lo, Index hi, Watch& watch) {
        double largest = 0.0;
        for (Index i = lo; i < hi; ++i) {
            const double *line = s.costs().row(i), *other = s.base.data() + s.a, own = s.base[i];
            float* into = s.by_rows.data() + i * s.B;
            for (Index j = 0; j < s.b; ++j) {
                const double value = line[j] - own - other[j], size = std::abs(value);
                largest = size > largest ? size : largest;
                into[j] = float(value);
            }
            watch.spend(s.b);
        }
        const std::lock_guard lock(guard);
        most = std::max(most, largest);
    });
    s.unit = std::max(most / SHORT, LEAST_UNIT);
    const float per_unit = float(1.0 / s.unit);
    split(team, (s.b + BLOCK - 1) / BLOCK, work, [&](Index lo, Index hi, Watch& watch) {
        for (Index j = BLOCK * lo; j < std::min(BLOCK * hi, s.b); j += BLOCK) {
            const Index end = std::min(j + BLOCK, s.b);
            for (Index i = 0; i < s.a; ++i) {
                const float* line = s.by_rows.data() + i * s.B;
                shorten(line + j, per_unit, end - j, s.short_rows.data() + i * s.B + j);
                for (Index k = j; k < end; ++k) s.by_columns.data()[k * s.A + i] = line[k];
            }
            for (Index k = j; k < end; ++k) shorten(s.by_columns.data() + k * s.A, per_unit, s.a, s.short_columns.data() + k * s.A);
            watch.spend(3 * BLOCK * s.a);
        }
    });
}

/// Σ_k |u_k - v_k|
double apart(View<double> u, View<double> v) {
    return sum_of(Index(u.size()), [=](Index k) { return std::abs(u[k] - v[k]); });
}

}  // namespace

std::vector<double> profiles(Team& team, const Rows& y, const Costs& W) {
    const Index m = y.size();
    std::vector<double> below(std::size_t(PROFILE * W.b)), Z(std::size_t(m * PROFILE));
    for (Index k = 0; k < PROFILE; ++k) {
        const double* costs = W.row(k * W.a / PROFILE);
        const auto [low, high] = range_of(costs, W.b);
        const double multiple = double(k + 1) * GOLDEN, s = low + (multiple - std::floor(multiple)) * (high - low);
        for (Index t = 0; t < W.b; ++t) below[k * W.b + t] = costs[t] < s ? 1.0 : 0.0;
    }
    split(team, m, double(m * W.b) * PROFILE / 8, [&](Index lo, Index hi, Watch& watch) {
        for (Index j = lo; j < hi; ++j) {
            const double* q = y.probabilities.data() + y.first[j];
            for (Index k = 0; k < PROFILE; ++k) {
                const double* counted = below.data() + k * W.b;
                Z[j * PROFILE + k] = sum_of_lanes(W.b, [=](Index t, auto of) { return of.load(q + t) * of.load(counted + t); });
            }
            watch.spend(W.b * PROFILE / 8);
        }
    });
    return Z;
}

void nearest_first(View<double> Z, Index width, Out<Index> order, Out<Index> near, Watch& watch) {
    const Index m = Index(order.size());
    const auto point = [&](Index i) { return Z.subspan(std::size_t(i * width), std::size_t(width)); };
    std::vector<double> mean(std::size_t(width), 0.0), distance(std::size_t(m), 0.0);
    for (Index i = 0; i < m; ++i)
        for (Index k = 0; k < width; ++k) mean[k] += point(i)[k];
    for (double& entry : mean) entry /= double(m);
    for (Index i = 0; i < m; ++i) distance[i] = apart(point(i), mean), near[i] = NO_NODE;
    std::vector<Index> left(std::size_t(m), 0);  // the points that are not in the tree, in any order
    std::iota(left.begin(), left.end(), Index(0));
    for (Index k = 0; k < m; ++k) {
        std::size_t at = 0;
        for (std::size_t l = 1; l < left.size(); ++l) {
            const Index i = left[l], best = left[at];
            if (distance[i] < distance[best] || (distance[i] == distance[best] && i < best)) at = l;
        }
        const Index j = order[k] = left[at];
        left[at] = left.back();
        left.pop_back();
        for (const Index i : left) {
            const double other = apart(point(i), point(j));
            if (other < distance[i]) distance[i] = other, near[i] = j;
        }
        watch.spend(Index(left.size()) * width / 8);
    }
}

bool fits_dense(const Transports& transports, DenseFrom from) {
    const Items& items = transports.items;
    const bool narrow = std::visit([](const auto& trees) { return trees.narrow(); }, transports.trees);
    const Index n_x = items.x.longest(), n_y = items.n_y;
    if (narrow || Index(items.x.states.size()) != items.x.size() * n_x || Index(items.y.states.size()) != items.y.size() * n_y) return false;
    for (Index i = 0; i < items.x.size(); ++i)
        if (items.x.states_of(i).back() != n_x - 1) return false;
    if (items.size() != items.x.size() * items.y.size() || !std::is_sorted(items.listed.begin(), items.listed.end())) return false;
    for (Index k = 0; k < Index(items.listed.size()); ++k)
        if (items.listed[k] != k) return false;
    return std::min(n_x, n_y) >= from.each && from.total <= n_x + n_y && n_x + n_y < PLACE - 2 * LANES;
}

Dense::Dense(const Transports& transports)
    : shared_(transports.items.x.longest(), transports.items.n_y, transports.items.y.size()) {
    const Rows& y = transports.items.y;
    for (Index j = 0; j < y.size(); ++j)
        for (Index t = 0; t < shared_.b; ++t) shared_.mean[t] += y.probabilities[j * shared_.b + t];
    for (double& mass : shared_.mean) mass /= double(y.size());
    std::iota(shared_.order.begin(), shared_.order.end(), Index(0));
}

const Shared& Dense::prepare(Team& team, const Items& items, View<double> W) {
    Shared& s = shared_;
    Watch watch(team);
    for (Index i = 0; i < s.a; ++i) std::copy(W.data() + i * items.n_y, W.data() + i * items.n_y + s.b, s.table.data() + i * s.B);
    if (!has_center_) {
        const std::vector<double> uniform(std::size_t(s.a), 1.0 / double(s.a));
        std::vector<Index> order(std::size_t(std::max(s.a, s.b)));
        std::iota(order.begin(), order.end(), Index(0));
        northwest_corner({uniform.data(), s.mean.data()}, order.data(), order.data(), s.a, s.b, s.center());
        has_center_ = true;
    }
    Workspace w(s.nodes(), watch);
    optimize(s.costs(), s.center(), w, ROUGH_CENTER);
    std::copy(w.pot, w.pot + s.nodes(), s.base.begin());
    reduce_costs(team, s);
    nearest_first(profiles(team, items.y, s.costs()), PROFILE, s.order, s.near, watch);
    return s;
}

Swept Dense::solve(Team& team, const Transports& transports, View<double> W, const Effort& effort, Out<double> values) {
    if (effort.price == INF) return engine::solve(team, transports, W, effort, {}, values);  // any plans
    const Items& items = transports.items;
    prepare(team, items, W);
    return std::visit([&]<class Int>(const Trees<Int>& trees) {
        Swept swept;
        std::mutex guard;
        const double edges = double(shared_.nodes() - 1);
        split(team, items.x.size(), double(items.size()) * edges * edges, [&](Index lo, Index hi, Watch& watch) {
            RowSolver<Int> solver(items, trees, shared_, effort, values, watch);
            for (Index i = lo; i < hi; ++i) solver.solve_row(i);
            const std::lock_guard lock(guard);
            swept.add(solver.swept());
        });
        return swept;
    }, transports.trees);
}

}  // namespace engine
