// Transports between full rows: hundreds of states, each a successor of every other.
//
// All items share one table W, and every row has all states as successors. So an optimal tree of one item is dual feasible
// for any other, whatever its marginals. Starting from the tree of a *similar* item, the dual simplex needs far fewer
// pivots than the primal simplex needs from a first basis. The items of one row p of X are solved one after the other, each
// starting from
//
//     the tree of the earlier item whose row q of Y is nearest, or of the *hub* if that is nearer,
//
// where the hub is p with the mean row of Y. The order of the rows of Y is that of a minimum spanning tree grown from the
// mean (`nearest_first`). An item that has a tree from the last sweep starts from that tree, and abandons it only if it turns
// out to be far from optimal.
//
// *Near rows.* Pivots depend less on how much mass differs between two rows than on how far it has to move. Every state x of
// X maps the states y of Y to numbers, their costs W(x, y), and so a row to a distribution on a line. The distance of two
// rows is the mean over x of the Wasserstein distances on these lines,
//
//     d(q, q') = mean over x of ∫ |Pr[W(x, y) < s] - Pr[W(x, y') < s]| ds,    y ~ q, y' ~ q',
//
// estimated from some pairs (x, s) (`profiles`). For the cost 1[x ≠ y] it is proportional to the total variation. If neither
// rows nor costs have any structure, all rows are about equally far apart, and nearer to their mean by a factor of √2.
//
// *The dual pivot.* An edge with negative flow leaves and cuts the tree in two. Among the cells that carry flow back across
// the cut, the one with the least reduced cost enters. Only the lines (rows or columns) of the smaller side are scanned.
// Memory limits the speed of the scan, so reduced costs are stored as 16-bit integers. They are relative to the potentials
// of one common tree (the *center*), which makes them small. A wrong choice costs a primal pivot, never correctness: flows
// are in double precision, and the primal simplex that follows prices every cell with the table itself.
//
// *The primal pivot.* The cell with the least reduced cost of every row goes on a list. Cells on the list enter, best first,
// until those left are not worth a pivot; then the list is made again. A transport is solved when a list that can have
// missed no cell, made from freshly computed potentials, is empty.
//
// So that loops run over whole vectors, the length of a line is a multiple of LANES cells. In the dual simplex nodes are
// numbered accordingly: rows from 0, columns from A = a rounded up. The nodes in between have no flow; their cells cost
// FORBIDDEN. Items of one row of X depend on one another, rows do not: threads share the rows.
#pragma once

#include <new>

#include "transports.hpp"

namespace engine {

/// The length of a line is a multiple of this.
constexpr Index LANES = 16;

/// The number of pairs (x, s) from which distances of rows are estimated.
constexpr Index PROFILE = 128;

/// From how many states on, in total and of each chain, full rows are solved in this way. With fewer, the general solver
/// of transports.hpp is as fast.
struct DenseFrom {
    Index total = 65, each = 8;
};

/// Whether all rows are full, all pairs of rows are items, and there are enough states, but not too many for the numbers of
/// the nodes.
bool fits_dense(const Transports& transports, DenseFrom from);

/// An array that starts at a cache line: reading one that does not takes a fifth longer.
template <class T> class Aligned {
  public:
    explicit Aligned(Index size, T fill = T()) : data_(static_cast<T*>(::operator new[](std::size_t(size) * sizeof(T), LINE))) {
        std::fill(data_.get(), data_.get() + size, fill);
    }

    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }

  private:
    static constexpr std::align_val_t LINE{64};

    struct Free {
        void operator()(T* memory) const { ::operator delete[](memory, LINE); }
    };

    std::unique_ptr<T[], Free> data_;
};

/// Data that all items of a sweep share.
struct Shared {
    Index a, b;  // rows and columns
    Index A, B;  // rounded up to multiples of LANES
    Aligned<double> table;  // (a*B) a copy of W
    Aligned<float> by_rows, by_columns;  // (A*B), (B*A) reduced costs with respect to the center's potentials
    Aligned<std::int16_t> short_rows, short_columns;  // (a*B), (b*A) the same in units
    double unit = 1.0;  // chosen so that the largest reduced cost is at most SHORT units
    std::vector<double> base;  // (a + b) potentials of the center
    std::vector<double> mean;  // (b) the mean row of Y
    std::vector<std::int32_t> child, parent;  // (a + b - 1) the center, an optimal tree for W between the uniform
    std::vector<double> flow;  // distribution and the mean row
    std::vector<Index> order;  // (m_Y) the rows of Y, each after the row that it starts from
    std::vector<Index> near;  // (m_Y) the row that each row starts from; NO_NODE for the mean

    Shared(Index rows, Index columns, Index rows_of_y);

    Index nodes() const { return a + b; }
    Costs costs() const { return {table.data(), B, a, b}; }
    Tree<std::int32_t> center() { return {child.data(), parent.data(), flow.data(), nodes() - 1}; }
};

/// Working memory of the dual simplex; arrays over nodes (A + B), except where a size is given.
struct DualWork : Threaded {
    Aligned<Link> links;
    Aligned<std::int32_t> sizes;
    Aligned<double> flows;
    Aligned<std::int32_t> score;  // of the edge to the parent: the one with the largest score leaves
    Aligned<float> pot;  // potentials relative to the base; -FORBIDDEN for nodes on the scanned side of the cut
    Aligned<Node> side;  // the nodes of that side
    Aligned<float> side_pot;  // and their potentials
    Aligned<Node> lines;  // (A + B + LANES) those of them whose lines are scanned
    Aligned<float> line_pot;  // (A + B + LANES) and their potentials
    Aligned<std::int32_t> shift;  // (A + B + LANES) the same in units
    Aligned<std::int16_t> best;  // (max(A, B)) the least reduced cost at each node across the cut, in units
    std::vector<double> weight;  // (a + b + 1) of an edge, by the size of the subtree below it

    explicit DualWork(const Shared& shared);
};

/// A cell that may enter.
struct Cell {
    Node row, column;
    double cost;
};

/// Working memory of the primal simplex: a list of cells that may enter, at most one of each row.
struct CellList {
    std::vector<Cell> cells;  // (a)
    Aligned<float> pot;  // (a + b) potentials relative to the base
    Aligned<float> best;  // (A) the least reduced cost of each row, up to its potential
    Index size = 0;  // cells on the list

    explicit CellList(const Shared& shared) : cells(std::size_t(shared.a)), pot(shared.nodes()), best(shared.A) {}
};

/// Working memory of one thread.
struct DenseTools {
    Workspace work;
    DualWork dual;
    CellList list;
    std::vector<double> costs;  // of the edges of the last tree
    std::vector<std::int32_t> child, parent;  // the hub: for the present row of X and the mean row of Y
    std::vector<double> flow;

    DenseTools(const Shared& shared, Watch& watch)
        : work(shared.nodes(), watch), dual(shared), list(shared), costs(std::size_t(shared.nodes() - 1)), child(costs.size()),
          parent(costs.size()), flow(costs.size()) {}

    Watch& watch() { return *work.watch; }
    Tree<std::int32_t> hub() { return {child.data(), parent.data(), flow.data(), Index(child.size())}; }
};

/// Pr[W(x, y) < s], y ~ q, for each row q of Y and PROFILE pairs (x, s), spread over all states and costs; (m_Y, PROFILE).
std::vector<double> profiles(Team& team, const Rows& y, const Costs& W);

/// Order points Z (m, width) so that each is near an earlier one or their mean: a minimum spanning tree (Prim). `near` gets
/// the point that each point is near, or NO_NODE for the mean.
void nearest_first(View<double> Z, Index width, Out<Index> order, Out<Index> near, Watch& watch);

/// Make a tree feasible for other marginals by the dual simplex, keeping its potentials nearly optimal. Gives up when a fresh
/// start would be faster; the tree is then as before.
template <class Int> Pivoted repair_dense(Tree<Int> tree, Marginals m, const Shared& shared, DenseTools& tools);

/// Run the primal simplex from a feasible tree until no reduced cost is below -tol for freshly computed potentials, or about
/// `max_pivots` are done. The potentials are left in `tools.work.pot`, the costs of the edges in `tools.costs`.
template <class Int> Pivoted optimize_dense(Tree<Int> tree, const Shared& shared, DenseTools& tools, double tol, Index max_pivots);

/// List the best cell of every row that has a reduced cost below -tol for the potentials in `tools.work.pot`.
void list_all(const Shared& shared, double tol, DenseTools& tools);

/// The same in half the time: rows are selected in single precision. If `sure`, none is missed.
void list_fast(const Shared& shared, double tol, bool sure, DenseTools& tools);

/// The solver, with what it keeps from sweep to sweep.
class Dense {
  public:
    explicit Dense(const Transports& transports);

    /// values[k] = OT_W of all items; their trees become optimal.
    Swept solve(Team& team, const Transports& transports, View<double> W, const Effort& effort, Out<double> values);

    /// Compute what all items share for the table W, starting from the last center.
    const Shared& prepare(Team& team, const Items& items, View<double> W);

  private:
    Shared shared_;
    bool has_center_ = false;
};

}  // namespace engine
