// Linear systems (I - γ Π) u = b with stochastic Π, or its transpose: policy evaluation and occupancies.
//
// Plain sweeps u ← b + γ Π u contract by γ and need hundreds of passes at γ = 0.95. BiCGStab (van der Vorst 1992) needs
// about ten for chains that mix. Its residual is always checked, and its result is only a better table for the next
// certified sweep.
//
// Vector updates are fused, because memory traffic dominates on large grids. Sums are cut into pieces by the length of the
// vectors alone (`even_pieces`), so that results do not depend on the number of threads.
#pragma once

#include <array>
#include <cmath>
#include <type_traits>

#include "lanes.hpp"
#include "parallel.hpp"

namespace engine {

/// The terms of a step of BiCGStab that are summed over all entries.
struct Sums {
    double first = 0.0, second = 0.0;
    double worst = 0.0;  // largest absolute value; NaN if any is
};

/// Call piece(lo, hi) -> Sums on even pieces of 0 … size - 1 with all threads, and combine the results in order.
template <class Piece> Sums summed(Team& team, Index size, Piece&& piece) {
    const Index pieces = even_pieces(size, double(size));
    std::array<Sums, 16> found;
    split(team, pieces, double(size), [&](Index from, Index to, Watch& watch) {
        for (Index k = from; k < to; ++k) {
            const Index lo = size * k / pieces, hi = size * (k + 1) / pieces;
            found[std::size_t(k)] = piece(lo, hi);
            watch.spend(hi - lo);
        }
    });
    Sums total;
    for (Index k = 0; k < pieces; ++k) {
        const Sums& more = found[std::size_t(k)];
        total.first += more.first, total.second += more.second;
        total.worst = more.worst > total.worst || std::isnan(more.worst) ? more.worst : total.worst;
    }
    return total;
}

/// BiCGStab for A u = b, where product(v, out) computes out = A v for vectors of type T.
template <class T, class Product> class BiCGStab {
  public:
    BiCGStab(Team& team, Product product, View<T> b, Out<T> u)
        : team_(team), product_(std::move(product)), n_(Index(u.size())), b_(b.data()), u_(u.data()), r_(u.size()), q_(u.size()), t_(u.size()) {}

    /// Improve u until the largest entry of b - A u is below `target`; returns that entry.
    ///
    /// The shadow vector is the first residual; after a breakdown the method restarts from the current u. Returns infinity
    /// if the iteration diverges until numbers overflow; u is then of no use.
    double solve(double target, Index max_iterations) {
        double worst = residual();
        restart();
        for (Index k = 0; k < max_iterations && std::isfinite(worst); ++k) {
            if (worst <= target) {
                worst = residual();  // the recurrence drifts, so it is computed again
                if (worst <= 2 * target) return worst;
            }
            const double alpha = half_step();
            const double omega = full_step(worst);
            const double before = rho_;
            rho_ = next_rho_;
            const double beta = ratio(rho_, before) * ratio(alpha, omega);
            if (beta == 0.0) {
                worst = residual();
                restart();
            } else {
                turn(T(beta), T(omega));
            }
        }
        worst = residual();
        return std::isfinite(worst) ? worst : INF;
    }

  private:
    Team& team_;
    Product product_;
    Index n_;
    const T* b_;
    T* u_;
    std::vector<T> r_, q_, t_, shadow_, p_;
    double rho_ = 0.0, next_rho_ = 0.0;

    /// a / b, or 0 if that is not a finite number.
    static double ratio(double a, double b) {
        const double value = b != 0.0 ? a / b : 0.0;
        return std::isfinite(value) ? value : 0.0;
    }

    void multiply(const std::vector<T>& v, std::vector<T>& out) { product_(View<T>(v), Out<T>(out)); }

    double product_of(const std::vector<T>& u, const std::vector<T>& v) {
        return summed(team_, n_, [&](Index lo, Index hi) { return Sums{dot(&u[lo], &v[lo], hi - lo)}; }).first;
    }

    /// r = b - A u; returns its largest absolute value.
    double residual() {
        product_(View<T>(u_, std::size_t(n_)), Out<T>(r_));
        return summed(team_, n_, [&](Index lo, Index hi) {
            Sums found;
            for (Index k = lo; k < hi; ++k) {
                r_[k] = b_[k] - r_[k];
                const double size = std::abs(double(r_[k]));
                found.worst = size > found.worst || std::isnan(size) ? size : found.worst;
            }
            return found;
        }).worst;
    }

    void restart() {
        shadow_ = r_, p_ = r_;
        rho_ = product_of(shadow_, r_);
    }

    /// u += α p, r -= α q, with q = A p; returns α.
    double half_step() {
        multiply(p_, q_);
        const double alpha = ratio(rho_, product_of(shadow_, q_));
        const T step = T(alpha);
        split(team_, n_, double(n_), [&](Index lo, Index hi, Watch& watch) {
            for (Index k = lo; k < hi; ++k) u_[k] += step * p_[k], r_[k] -= step * q_[k];
            watch.spend(hi - lo);
        });
        return alpha;
    }

    /// The stabilizing step: u += ω r, r -= ω t, with t = A r; returns ω.
    double full_step(double& worst) {
        multiply(r_, t_);
        const Sums dots = summed(team_, n_, [&](Index lo, Index hi) {
            return Sums{dot(&t_[lo], &r_[lo], hi - lo), dot(&t_[lo], &t_[lo], hi - lo)};
        });
        const double omega = ratio(dots.first, dots.second);
        const T step = T(omega);
        const Sums found = summed(team_, n_, [&](Index lo, Index hi) {
            Sums sums;
            for (Index k = lo; k < hi; ++k) {
                u_[k] += step * r_[k];
                r_[k] -= step * t_[k];
                const double size = std::abs(double(r_[k]));
                sums.worst = size > sums.worst || std::isnan(size) ? size : sums.worst;
            }
            sums.first = dot(&shadow_[lo], &r_[lo], hi - lo);
            return sums;
        });
        next_rho_ = found.first, worst = found.worst;
        return omega;
    }

    /// p = r + β (p - ω q)
    void turn(T beta, T omega) {
        split(team_, n_, double(n_), [&](Index lo, Index hi, Watch& watch) {
            for (Index k = lo; k < hi; ++k) p_[k] = r_[k] + beta * (p_[k] - omega * q_[k]);
            watch.spend(hi - lo);
        });
    }
};

/// Improve u until the largest entry of b - A u is below `target`; returns that entry, infinite if the iteration diverged.
template <class T, class Product>
double bicgstab(Team& team, Product&& product, View<T> b, Out<T> u, double target, Index max_iterations) {
    return BiCGStab<T, std::remove_cvref_t<Product>>(team, product, b, u).solve(target, max_iterations);
}

/// u ← b + γ Π u, so many times, where product(v, out) computes out = (I - γ Π) v.
template <class Product> void sweep(Team& team, Product&& product, View<double> b, Out<double> u, Index times) {
    std::vector<double> image(u.size());
    for (Index k = 0; k < times; ++k) {
        product(View<double>(u), Out<double>(image));
        split(team, Index(u.size()), double(u.size()), [&](Index lo, Index hi, Watch& watch) {
            for (Index z = lo; z < hi; ++z) u[z] = (u[z] + b[z]) - image[z];
            watch.spend(hi - lo);
        });
    }
}

}  // namespace engine
