// Marginals of SOMCOT's coupling μ from its factors (somcot.hpp has the letters).
//
// After k iterations the four parts of log μ are of order η k V and cancel down to log μ ≤ 0. At k = 10^6 their
// exponentials range over e^±1000000, so they cannot be computed separately. But no entry of a row (all y' of one
// x, y, x') exceeds e^base, where base = S + U + max W + max L. This gives two methods:
//
//     products   while every base is below SAFE: μ is a product of the factors s u, w and the shared kernel exp(L).
//                Factors s u below e^DROP and others below e^FLUSH count as zero, and rows without mass are skipped.
//     entries    later: only the few entries above e^DROP. Finding them is the expensive part, so the entries of every x
//                are listed down to e^(DROP - FAR), and of this list those down to e^(DROP - NEAR). A list is valid
//                until a log μ outside of it could have risen by FAR or NEAR. Every iteration visits the short list; the
//                long one, from which it is renewed, saves searching all entries.
//
// The method depends only on the iterates, and the lists do not affect the result: sums have a fixed order, and entries
// below e^DROP add zero.
#pragma once

#include "lanes.hpp"
#include "somcot.hpp"

namespace engine::somcot {

/// Largest logarithm of which exponentials are taken; larger ones are clipped, and their sum is too large for a mass.
constexpr double HIGHEST = 700.0;

/// Entries of μ below e^DROP = 4e-18 count as zero, and so do other exponentials below e^FLUSH.
constexpr double DROP = -40.0, FLUSH = -320.0;

/// A sum in eight partial sums: entry i belongs to partial sum i mod 8.
struct Lanes {
    Doubles part[8 / N_DOUBLES] = {};

    ALWAYS_INLINE void add(Index i, Doubles v) { part[i % 8 / N_DOUBLES] += v; }
    ALWAYS_INLINE void add(Index i, double v) { part[i % 8 / N_DOUBLES][i % N_DOUBLES] += v; }

    ALWAYS_INLINE double lane(int i) const { return part[i / N_DOUBLES][i % N_DOUBLES]; }
    ALWAYS_INLINE double sum() const {
        return ((lane(0) + lane(4)) + (lane(1) + lane(5))) + ((lane(2) + lane(6)) + (lane(3) + lane(7)));
    }
};

/// The parts of log μ.
struct Factors {
    View<double> U, W, L, S;
};

/// The entries of μ at one x above some level.
struct List {
    std::vector<std::int32_t> u, k, target;  // positions within the parts of U and W that belong to x, and in L
    Index size = NONE;  // their number
    std::vector<double> since;  // (n_Y): the bound on the increase of log μ when x was listed

    static constexpr Index NONE = -1;  // there is no list

    void reserve(Index n);
};

/// The marginals of μ, and the lists that they are computed from.
class Marginals {
  public:
    Marginals(const Seen& x, const Seen& y, Index most_listed);

    std::vector<double> MA, MB, N, m;
    std::vector<double> rise;  // (n_X, n_Y): bound on the increase of log μ so far, kept by the caller

    /// Compute all marginals by products; returns false, with undefined marginals, if a base exceeds SAFE.
    bool by_products(const Factors& factors, Watch& watch);

    /// Compute all marginals from the entries above e^DROP.
    void by_entries(const Factors& factors, Watch& watch);

    /// Drop all lists.
    void forget();

    /// The largest log μ.
    double peak(const Factors& factors, Watch& watch);

  private:
    struct Row;

    Row row_of(Index x, const Factors& factors);
    const List* renewed(Index x, const Row& row);
    bool list(const Row& row, List& found);
    void select(const Row& row, const List& far, List& near);
    bool expired(List& list, Index x, double slack) const;
    void add_listed(const Row& row, const List& entries);
    void add_all(const Row& row);
    void log_pair(const Row& row, Index y, double* out) const;

    double factors_of_pair(Index x, Index y, const Factors& factors);
    void add_pair(Index x, Index y, double* columns);

    const Seen x_, y_;
    const Index n_x_, n_y_, longest_;
    Index room_;  // largest number of entries of a list
    std::vector<List> far_, near_;
    std::vector<double> SU_, z_;  // workspace
    Index padded_;  // length of a line of the workspace for products: n_Y, rounded up
    std::vector<double> K_, mass_, top_, su_, w_;
    std::vector<Index> live_;
};

/// Replace v by e^v, or by zero where v is at most `least`.
void exponentials(double* v, Index n, double least);

/// The largest of n numbers; -∞ if there is none.
double largest_of(const double* v, Index n);

}  // namespace engine::somcot
