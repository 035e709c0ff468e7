// One Gibbs kernel for all pairs, if every transition is possible: half-steps and expectations as matrix products.
//
// With K = exp(-βW), u = e^{βf}, w = e^{βg} as matrices (pairs × n_X), (pairs × n_Y), and the rows P, Q of the chains for
// each pair,
//
//     rows       u = 1 / ((Q∘w) Kᵀ)                             columns    w = 1 / ((P∘u) K)
//     <π, V>     = sum over x' of (P∘u) ∘ ((Q∘w) (K∘V)ᵀ)        Σ m π = K ∘ ((m∘P∘u)ᵀ (Q∘w))
//
// Rounding only changes the scalings and adds a rank-one term to each plan, so the form is preserved.
//
// Pairs are worked on in blocks that fit the cache; a pair leaves its block when its own marginals are accurate. Results
// are accurate while K, u and w are representable: the kernel is centered (`middle` of the table's range is subtracted),
// potentials are kept as logarithms and balanced within each pair (f and g have the same midpoint), and exponents are
// checked before and after. Pairs whose exponents are out of range are reported, unchanged, and the caller computes them
// one by one (sinkhorn.hpp).
#pragma once

#include <memory>

#include "parallel.hpp"
#include "products.hpp"

namespace engine {

/// When Sinkhorn's iteration stops.
struct Limit {
    Index iterations;
    double error;  // of the marginals
};

/// What Sinkhorn's iteration knows of every pair.
struct Progress {
    Out<double> omega;  // over-relaxation
    Out<double> error;  // of the marginals
};

/// The potentials of all pairs: those of one x are ordered by y, those of one y by x (sinkhorn.hpp).
struct Potentials {
    Out<double> F, G;
};

/// Consecutive pairs.
struct Block {
    Index from, to;

    Index size() const { return to - from; }
};

/// The rows of two chains all of whose transitions are possible.
struct FullRows {
    View<double> P, Q;  // (m_X × n_X), (m_Y × n_Y)
    Index m_y, n_x, n_y;

    const double* row_x(Index k) const { return P.data() + k / m_y * n_x; }
    const double* row_y(Index k) const { return Q.data() + k % m_y * n_y; }
};

class SharedKernel {
  public:
    /// Pairs in a block.
    static constexpr Index BLOCK = 32;

    /// The kernel, or none if its entries would not be representable.
    static std::shared_ptr<const SharedKernel> of(const FullRows& laws, View<double> W, double beta);

    SharedKernel(const FullRows& laws, View<double> W, double beta);

    const FullRows& laws() const { return laws_; }
    double entry(Index i, Index j) const { return entries_[i * laws_.n_y + j]; }

    /// Run Sinkhorn's iteration on a block and return the number of iterations of all pairs; pairs out of range are added
    /// to `unfit`.
    Index scale(Block block, Potentials potentials, Limit limit, Progress progress, Watch& watch, std::vector<Index>& unfit) const;

    /// Write softmin(W - G) to `out` (like F), or, with `columns`, softmin(W - F) (like G), except for `unfit` pairs.
    void half_step(Block block, Potentials potentials, bool columns, Out<double> out, std::vector<Index>& unfit) const;

    /// Plans π = diag(u) K diag(w) + row ⊗ col of a block, each side (pairs × padded columns).
    struct Factors {
        double *u, *w, *row, *col;
    };

    /// Write the factors of a block, and return the largest mass of the last term, which comes from rounding; infinity if
    /// a pair is out of range.
    double factors(Block block, Potentials potentials, bool rounded, const Factors& into) const;

  private:
    FullRows laws_;
    double beta_, middle_;
    double size_;  // largest absolute exponent of K
    std::vector<double> entries_;
    Panels K_, K_T_;
};

/// Iterations before over-relaxation, its ω, and iterations between reviews of ω.
constexpr Index PATIENCE = 6, EVERY = 10;
constexpr double OMEGA = 1.75;

/// Scalings grow at most by the inverse of this in one step; columns lighter than this fraction of their target get a
/// half-step of their own.
constexpr double TINY = 1e-150;

/// About h^-ω, to second order in h - 1 (like 1/h outside [1/2, 2]): 1/h for ω = 1. T is a number or a register.
template <class T> ALWAYS_INLINE T relaxed_inverse(T h, double omega) {
    const T half = T{} + 0.5, two = T{} + 2.0, tiny = T{} + TINY;
    const T have = h < tiny ? tiny : h;  // not a number stays so
    const T low = have < half ? half : have, c = low > two ? two : low, below = 1.0 - c;
    return c * (c + 0.5 * (omega + 1.0) * below) / (have * (c - 0.5 * (omega - 1.0) * below));
}

/// ω after `done` iterations: 1 at first, then OMEGA for slow pairs, and 1 again if the error grew.
///
/// Sinkhorn is block Gauss-Seidel on the dual. Near the solution SOR converges for ω < 2, and its best ω is near 2 if
/// Sinkhorn is slow (Young 1954). Far from the solution ω = 1.9 diverges at low temperatures, while 1.75 never did.
inline double relaxation(Index done, double omega, double error, double before) {
    if (done % EVERY == 0 && error > 1.5 * before) return 1.0;
    return done == PATIENCE ? std::max(omega, OMEGA) : omega;
}

}  // namespace engine
