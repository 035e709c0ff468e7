// Sinkhorn's algorithm on all pairs of rows of two chains, for plans in Gibbs form.
//
//     π_xy(x',y') = P_X(x'|x) P_Y(y'|y) exp(β (f_xy(x') + g_xy(y') - W(x',y')))
//
// The table W and the inverse temperature β are common to all pairs; only the potentials f_xy, g_xy belong to a pair. Only
// these are kept, a + b numbers for a pair with a and b successors, never the plans. There are two ways to compute:
//
//     shared kernel    if every transition is possible and exp(-βW) is representable: one matrix product does a half-step
//                      for a block of pairs (shared_kernel.hpp)
//     pair by pair     the costs of a pair's successors are gathered into a matrix that stays in the cache; for any
//                      supports and any β
//
// A pair is π(i,j) = p_i q_j exp(β (f_i + g_j - W_ij)) on the successors i of x and j of y. No exponential can overflow, for
// any β, costs and probabilities: the rows of a new matrix are first normalized by their largest term (*absorption*), so
// that the scalings u, w of the iteration start at one. If they grow beyond LARGE, they are absorbed into f and g and the
// matrix is computed again. Every pair stops when its own marginals are accurate.
//
// *Bounds.* A rounded plan costs at least as much as the transport, and the value after two transforms, g → f → g, is at
// most that:
//
//     <p, f> + <q, g>  ≤  min over couplings of <·, U> + ε KL(· ‖ p⊗q)  ≤  <π, U> + ε KL(π ‖ p⊗q)
//
// for a table U and a temperature ε ≥ 0. The transform is f_i = min_j (U_ij - g_j), or its soft version
// -ε log Σ_j q_j exp((g_j - U_ij)/ε), whose plan has mass one, so that the entropic dual has no further term.
//
// *As a matrix* Π on tables the plans have n_X² n_Y² entries. It is represented in one of three ways (`Form`).
//
//     k = x m_Y + y       pairs of rows, m_Y rows of Y (the starts are the case of a single pair)
//     W, U, V             flat tables (n_X*n_Y,)
//     F, G                potentials, (m_Y E_X,) and (m_X E_Y,) for E_X and E_Y entries of the kernels: those of one x are
//                         ordered by y, those of one y by x
//     C, K (a × b)        costs and plan of one pair
#pragma once

#include "evaluation.hpp"
#include "shared_kernel.hpp"

namespace engine {

/// All pairs of a row of X and a row of Y.
struct Pairs {
    Rows x, y;
    Index n_x, n_y;  // shape of the tables
    std::vector<double> log_p, log_q;  // logarithms of the probabilities
    std::vector<Index> all_x, all_y;  // 0 … n_x - 1 and 0 … n_y - 1

    Pairs(const Rows& x, const Rows& y, Index n_x, Index n_y);

    Index size() const { return x.size() * y.size(); }
    double cells() const { return double(x.states.size()) * double(y.states.size()); }
    bool are_full() const { return Index(x.states.size()) == x.size() * n_x && Index(y.states.size()) == y.size() * n_y; }
};

/// The laws of pair k on its successors, and where its potentials are in F and G.
struct Pair {
    Index x, y;
    View<Index> rows, cols;
    View<double> p, q, log_p, log_q;
    Index at_f, at_g;

    Pair(Index k, const Pairs& pairs);

    Index a() const { return Index(rows.size()); }
    Index b() const { return Index(cols.size()); }
};

/// A table and the temperature of the transports over it; 0 for hard transforms.
struct Tempered {
    View<double> U;
    double epsilon;
};

/// The plans of all pairs. The arrays of potentials and tables belong to the caller.
class GibbsPlans {
  public:
    GibbsPlans(const Rows& x, const Rows& y, Index n_x, Index n_y, Potentials potentials);

    const Pairs& pairs() const { return pairs_; }
    const std::shared_ptr<const SharedKernel>& shared() const { return shared_; }

    /// Set table and inverse temperature, with a shared kernel if that is possible and wanted.
    void set_kernel(View<double> W, double beta, bool share);

    /// Run over-relaxed Sinkhorn on every pair from its last potentials; returns the number of iterations of all pairs.
    Index scale(Team& team, Limit limit, Progress progress);

    /// Run Newton's method on every pair whose error exceeds `target`, and return their number.
    Index polish(Team& team, double target, Out<double> error);

    /// Write softmin(W - G) to `out` (like F), or, with `columns`, softmin(W - F) (like G).
    void half_step(Team& team, bool columns, Out<double> out) const;

    /// out[k] = <p, f> for potentials like F, or, with `columns`, <q, g> for potentials like G.
    void means(Team& team, bool columns, View<double> potential, Out<double> out) const;

    /// out[k] = <π, U> + ε KL(π ‖ p⊗q) for the plan of every pair, rounded to its marginals or not.
    void plan_costs(Team& team, const Tempered& of, bool rounded, Out<double> out) const;

    /// Write lower bounds on the transport of every pair to `out`; returns the largest potential.
    double dual_bounds(Team& team, const Tempered& of, Out<double> out) const;

    /// Write the plan of pair k, (a × b).
    void plan(Index k, bool rounded, Out<double> out) const;

    /// Write the potentials of pair k at all states, f (n_X,) and g (n_Y,), by transforms off the successors.
    void potentials(Index k, const Tempered& of, Out<double> f, Out<double> g) const;

    /// Add Σ_k m_k f_k to the rows of X and Σ_k m_k g_k to the rows of Y: at all states, or aligned with the successors.
    void weighted_potentials(Team& team, const Tempered& of, View<double> m, bool everywhere, Out<double> by_x, Out<double> by_y) const;

  private:
    friend class RecomputedPlans;
    friend class StoredPlans;
    friend class FactoredPlans;

    Pairs pairs_;
    Potentials potentials_;
    View<double> W_;
    double beta_ = 1.0;
    std::shared_ptr<const SharedKernel> shared_;
};

/// What an iteration for a linear system has reached.
struct Residual {
    double worst;  // the largest entry; infinite if the iteration diverged
    Index products;
};

/// The plans as one stochastic matrix Π. The plans must outlive it.
class PlanOperator {
  public:
    /// How the matrix is represented.
    enum class Form {
        FACTORED,  // with a shared kernel: two scalings and a rank-one term per pair
        STORED,  // all entries
        RECOMPUTED,  // nothing: every use recomputes the plans from the potentials
    };

    /// The matrix of the present plans, rounded or not; nothing if they cannot be factored.
    static std::unique_ptr<PlanOperator> make(Team& team, const GibbsPlans& plans, bool rounded, Form form);

    virtual ~PlanOperator() = default;

    /// out[k] = <π_k, V>
    virtual void apply(Team& team, View<double> V, Out<double> out) const = 0;

    /// out = Σ_k m_k π_k
    virtual void push(Team& team, View<double> m, Out<double> out) const = 0;

    /// Improve u toward the solution of the system for b by BiCGStab; returns the largest residual.
    Residual solve(Team& team, System system, View<double> b, Out<double> u, double target, Index max_iterations) const;

    /// u ← b + γ Π u, or with the transpose, so many times
    void sweep(Team& team, System system, View<double> b, Out<double> u, Index times) const;

  private:
    /// out = (I - γ Π) v, or with the transpose
    void apply_system(Team& team, System system, View<double> v, Out<double> out) const;
};

/// out[k] = Σ P_X(x'|x) P_Y(y'|y) V(x', y'): the means of a table under the independent coupling.
void independent_means(Team& team, const Pairs& pairs, View<double> V, Out<double> out);

/// Improve u toward the value u = b + γ Π u of the independent coupling of two chains by BiCGStab, at `listed` pairs (all, if
/// that is empty) and with zeros elsewhere.
Residual solve_independent(
    Team& team, const Pairs& pairs, View<Index> listed, double discount, View<double> b, Out<double> u, double target, Index max_iterations
);

}  // namespace engine
