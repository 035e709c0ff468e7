// The value of a coupling: linear systems over pairs of states.
//
// The plans of all pairs are the rows of a stochastic matrix Π and define a Markov chain of pairs. Its discounted value and
// its occupancy are the solutions of
//
//     (I - γ Π) U = (1-γ) c            and            (I - γ Πᵀ) m = (1-γ) m_0.
//
// *Values.* Plain sweeps U ← (1-γ) c + γ Π U come first. If the change in a sweep is within [l, h], the solution is within
// γ/(1-γ) [l, h] of the table. The middle of this interval is the constant that sweeps are slow to find, and the spread h - l
// contracts as fast as the chain mixes. Where it does not mix, BiCGStab (krylov.hpp) is next. An inaccurate evaluation costs
// the solver iterations but never correctness: the certificate comes from the sweep of transports that follows.
//
// *Occupancies.* The sweeps m ← (1-γ) m_0 + γ Πᵀ m need no such constant: they preserve a total mass of one, and a
// difference without mass contracts as fast as the chain mixes. They also preserve the marginals of m where these are the
// occupancies of the two chains, so from the product of those the slow modes of the single chains never occur.
//
// Products with Πᵀ need the entries by target. These are kept in blocks of consecutive targets (`TransposedPlans`): within a
// block they are in the order of their sources, and each is added to a sum that stays in the cache. So threads share the
// blocks, every sum has its terms in the order of the sources, and no result depends on blocks or threads.
//
// *Single precision.* After an improvement of the table U the residual of the new plans is known, r = T U - U, and we want
// U + δ with (I - γ Π) δ = r. A few digits of δ are enough, however accurate U is. So for very many pairs this is done in
// single precision (`correct`), which halves the memory traffic.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <variant>

#include "krylov.hpp"
#include "memory.hpp"
#include "transports.hpp"

namespace engine {

/// Plans as rows of a sparse matrix whose columns are pairs: row k has the entries first[k] … first[k + 1] - 1.
template <class Number, class Flow> struct Plans {
    View<Index> first;
    View<Number> target;  // pairs
    View<Flow> flow;
    View<Index> chosen = {};  // the row of every pair; empty if pair z uses row z

    ALWAYS_INLINE Index row_of(Index z) const { return chosen.empty() ? z : chosen[z]; }
    double work() const { return double(flow.size()); }
};

using AnyPlans = std::variant<Plans<std::int32_t, double>, Plans<Index, double>>;

/// Which of the two systems: (I - γ Π) or (I - γ Πᵀ).
struct System {
    double discount;
    bool transposed = false;
};

/// The entries of Π by target, in blocks of consecutive targets.
class TransposedPlans {
  public:
    /// Of all pairs or, if `visited` is given, of the rows of visited pairs. Flows of zero are left out.
    TransposedPlans(Team& team, const AnyPlans& plans, Index size, View<bool> visited = {});

    Index size() const { return size_; }
    double work() const { return double(flow_.size()); }

    /// out = Πᵀ v for all targets, then finish(lo, hi) for each block.
    template <class Finish> void push(Team& team, View<double> v, Out<double> out, Finish&& finish) const;

  private:
    // Both places of an entry, of its source in a window of sources and of its target in a block, are one number of 32 bits.
    static constexpr int TARGET_BITS = 12;
    static constexpr Index BLOCK = Index(1) << TARGET_BITS;  // targets whose sums stay in the cache
    static constexpr Index WINDOW = Index(1) << (32 - TARGET_BITS);  // sources

    Index size_, windows_;
    std::vector<Index> first_;  // the first entry of each block and window, and the end
    LargeArray<std::uint32_t> places_;
    LargeArray<double> flow_;

    Index blocks() const { return (size_ + BLOCK - 1) / BLOCK; }
    template <class Number> void fill(Team& team, const Plans<Number, double>& plans, View<bool> visited);
};

/// The Markov chain of N pairs that some plans define. The plans belong to the caller.
class PairChain {
  public:
    PairChain(AnyPlans plans, Index size) : plans_(std::move(plans)), size_(size) {}

    Index size() const { return size_; }

    /// Number of products with Π or its transpose so far.
    Index products() const { return products_; }

    /// out = Π v for the first pairs, as many as `out` has.
    void multiply(Team& team, View<double> v, Out<double> out) const;

    /// out = (I - γ Π) v, or with the transpose
    void apply(Team& team, System system, View<double> v, Out<double> out) const;

    /// Improve u toward the solution of the system for `source` by BiCGStab; returns the largest residual.
    double solve(Team& team, System system, View<double> source, Out<double> u, double target, Index max_iterations) const;

    /// u ← source + γ Π u, or with the transpose, so many times
    void sweep(Team& team, System system, View<double> source, Out<double> u, Index times) const;

    /// Sweep U ← source + γ Π U while that is worthwhile, and add the constant; returns whether the residual fell below
    /// `target`. Requires stochastic plans; `spare` (N) is overwritten.
    bool relax(Team& team, double discount, View<double> source, Out<double> U, Out<double> spare, double target) const;

    /// Mark the pairs that the plans lead to from those with a positive source.
    void mark_visited(View<double> source, Out<bool> visited, Watch& watch) const;

    /// Improve m toward the occupancy m = source + γ Πᵀ m, where the total of the source is 1-γ, first by sweeps, then by
    /// BiCGStab; returns the largest residual. m becomes zero at pairs that are not visited.
    double occupancy(Team& team, double discount, View<double> source, View<bool> visited, Out<double> m, double target) const;

  private:
    AnyPlans plans_;
    Index size_;
    mutable std::atomic<Index> products_{0};
    mutable std::mutex guard_;
    mutable std::unique_ptr<const TransposedPlans> transposed_;  // guarded

    double work() const {
        return std::visit([](const auto& plans) { return plans.work(); }, plans_);
    }
    const TransposedPlans& transposed(Team& team) const;
    double solve_by(Team& team, const TransposedPlans& plans, double discount, View<double> source, Out<double> u, double target, Index most) const;
};

// --- in single precision -----------------------------------------------------------------------------------------

/// A solution δ of (I - γ Π) δ = r.
struct Corrected {
    bool solved;  // to a residual below the target
    bool in_second;  // in which of the two spare arrays it is
    double constant;  // what it lacks, if Π is stochastic
    Index products;
};

/// Solve (I - γ Π) δ = r for plans in single precision, one row for each pair, by sweeps and BiCGStab. Overwrites both spare
/// arrays (N), one of them by the solution.
Corrected correct(
    Team& team, const Plans<std::int32_t, float>& plans, double discount, View<float> r, Out<float> one, Out<float> two, double target
);

/// The same for the plans of narrow trees.
Corrected correct(
    Team& team, const Transports& transports, const SinglePlans& plans, double discount, View<float> r, Out<float> one, Out<float> two,
    double target
);

/// δ ← r + γ Π δ, so many times (an even number); `spare` (N) is overwritten.
void sweep_correction(
    Team& team, const Plans<std::int32_t, float>& plans, double discount, View<float> r, Out<float> delta, Out<float> spare, Index times
);
void sweep_correction(
    Team& team, const Transports& transports, const SinglePlans& plans, double discount, View<float> r, Out<float> delta, Out<float> spare,
    Index times
);

}  // namespace engine
