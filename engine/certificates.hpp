// Certified bounds: what a sweep of transports proves about the distance, including all rounding errors.
//
// Let T be the Bellman operator in units of U = (1-γ) V,
//
//     (T U)(x,y) = (1-γ) c(x,y) + γ OT_U(P_X(·|x), P_Y(·|y)),          d = OT_U*(ν_X, ν_Y),   U* = T U*.
//
// It is monotone, and T U shifts by γ k when U shifts by k. Hence for *any* table U and Δ = T U - U (MacQueen 1966)
//
//     T U + γ/(1-γ) min Δ  ≤  U*  ≤  T U + γ/(1-γ) max Δ.
//
// The transports need not be solved exactly: a plan with the right marginals costs at least OT_U, so the right inequality
// holds with its cost in place of OT_U, and potentials with f(x') + g(y') ≤ U(x',y') have a value of at most OT_U, so the
// left one holds with their value.
//
// *Rounding.* Costs are scaled to at most one. Let u = ε/2 = 2^-53, and let S be the size of U and T U: at least one, and
// at least every entry, every difference of entries and every potential of a transport that is zero at some node
// (`extremes`). The bounds are to first order in u and hold for any U: a table with entries of 1e18 has S = 1e18.
//
// 1. *A plan* has slightly wrong marginals. Its flows on a tree of N = a + b nodes take N additions of numbers up to one,
//    each with an error of u at one node and at the root. Negative flows with a total of κ were set to zero, each of
//    which affects two nodes. Rows whose sums differ from one by s (both rows together, known up to N u) are normalized
//    in the certified distance. With potentials that are zero at the root, errors there cost nothing. So the cost differs
//    from that of the best plan with the right marginals by at most (2 N u + s + 2 κ) S.
// 2. *Its value*, Σ π C over N - 1 edges, has an error of at most N u S.
// 3. *Its optimality.* Potentials have one rounding error on an edge of the tree, and the test of a reduced cost three. So
//
//        OT - η₀ ≤ value ≤ OT + p + η₀,     η₀ = ((3 N + 4) u + s + 2 κ) S               (transport_rounding)
//
//    where p is the tolerance below which reduced costs count as zero.
//
//    If a narrow tree (transports.hpp) is still optimal, its value is computed from potentials f, g as Σ p f + Σ q g. This
//    sum has a rounding error of 2 N u S. It exceeds OT by at most p + 3 u S + s S. The flows that the tree had when it
//    was made are a plan whose marginals have an error of N u + 2 κ. The cost of this plan is the sum above, and the cost
//    of the best plan for the right marginals differs by at most twice that error, 2 N u + 4 κ. So for these trees
//    η₀ = ((4 N + 4) u + s + 4 κ) S.
// 4. *T U* = (1-γ) c + γ value has four more rounding errors (1 - γ, two products, the sum), c = cost/scale has one, and
//    subtracting U adds one: together at most 5 u S, since those of the first term are of size (1-γ).
// 5. *The middle* of the interval, γ/(1-γ) (max Δ + min Δ - p)/2, has five rounding errors of at most S/(1-γ), and adding
//    T U one more.
//
// The true T U is between T U - γ p - η₀ - … and T U + η₀ + …, so by MacQueen's bounds U* is within
//
//     γ (max Δ - min Δ + p) / (2 (1-γ)) + η / (1-γ),     η = η₀ + 12 u S                        (band_of)
//
// of the middle. The distance is OT_U(ν_X, ν_Y) with U* instead of the middle. This difference is no larger, and step 3
// applies again to the transport of the starts. Multiplying by the scale is one rounding, made outward. Since d is an
// average of costs, bounds are clipped to the range of the costs; if a transport was not solved, they are that range.
//
// *Separable corrections.* MacQueen's bounds use the worst pair: d ≥ OT_U(ν_X, ν_Y) + min(T_l U - U)/(1-γ), where
// T_l U ≤ T U ≤ T_u U are the values of potentials and of plans. But a coupling cannot stay at the worst pair, because its
// marginals are given. If a(x) + b(y) ≤ (T_l U - U)(x,y) for all pairs, let α = (I - γP_X)⁻¹ a and β = (I - γP_Y)⁻¹ b.
// Every plan of (x,y) has marginals P_X(·|x) and P_Y(·|y), so adding α(x') + β(y') to a table adds
// (P_X α)(x) + (P_Y β)(y) to all transports, and h = U + α + β satisfies
//
//     T h = T U + γ P_X α + γ P_Y β ≥ U + a + b + (α - a) + (β - b) = h,        hence h ≤ U*, and
//
//     d ≥ OT_h(ν_X, ν_Y) = OT_U(ν_X, ν_Y) + (<ρ_X, a> + <ρ_Y, b>)/(1-γ)
//
// with the discounted occupancies ρ. The best a and b are the potentials of a transport between ρ_X and ρ_Y; a pair of
// c-transforms of the averages comes close. The upper bound uses U - T_u U in the same way. The argument needs only
// monotonicity and the marginals, so it also holds for the entropic operator.
#pragma once

#include "pairs.hpp"
#include "transports.hpp"

namespace engine {

/// Reduced costs above minus this count as zero (tables are scaled to at most one).
constexpr double PRICE = 1e-14;

/// What is known about the plans of a list of transports.
struct PlanErrors {
    Index nodes;  // N, of the largest transport
    double unbalanced;  // s: how far the masses of two rows differ from one, at most
    double clipped;  // κ: the largest mass of negative flows that were set to zero
    bool by_potentials = false;  // whether values may come from the potentials of narrow trees
};

/// η₀ / S: the largest effect of rounding on the value of a transport, for tables of size one.
double transport_rounding(const PlanErrors& errors);

/// How far the mass of a row of probabilities differs from one, at most.
double unbalanced_mass(View<Index> first, View<double> probabilities);

/// Where the fixed point is: within half + rounding of T U + shift.
struct Band {
    double shift, half, rounding;

    double gap() const { return 2 * half + 2 * rounding; }
};

/// The band that a sweep proves, given the extremes of T U - U. `price` is that of the sweep.
Band band_of(const Extremes& change, const PlanErrors& errors, double discount, double price);

/// The transport between the two start distributions. The arrays belong to the caller.
struct Start {
    View<Index> rows, cols;  // the states where the two processes can start
    View<double> p, q;  // with these probabilities
    Tree<std::int32_t> tree;
    Out<double> pot;
};

/// The value of the transport of the starts for a table.
struct StartValue {
    double value = 0.0;
    bool solved = false;
    double price = INF;  // how far the least reduced cost is below zero
    double slack = INF;  // largest effect of rounding: the minimum is in [value - price - slack, value + slack]
};

/// Solve the transport of the starts for a table U with n_y columns; its tree and potentials become optimal.
StartValue solve_start(const Start& start, View<double> U, Index n_y, double price, Watch& watch);

/// The least and the largest ground cost.
struct CostRange {
    double least, largest;

    static CostRange of(View<double> cost);

    /// All tables are in this unit.
    double unit() const { return largest > 0.0 ? largest : 1.0; }
};

/// The distance for a table, in the user's units, and its certified bounds.
struct Bounds {
    double value, lower, upper;
    double gap;  // relative to the largest cost, including the rounding of both bounds
};

/// Bounds on the distance if the table is known up to `half_gap`; if that is infinite, bounds on any distance.
Bounds bounds_of(const StartValue& start, double half_gap, const CostRange& costs);

/// An interval.
struct Interval {
    double low, high;
};

/// Bounds on OT_U of the starts; the lower one is minus infinity if it was not solved.
Interval start_interval(const StartValue& start);

/// A generous bound on the error of occupancies (diffbisim/stochastic.py); divided by 1-γ, as for sparse chains.
constexpr double OCCUPANCY_ERROR = 1e-12;

/// A certified <ρ_X, a> + <ρ_Y, b> with a(x) + b(y) ≤ delta(x,y), the best of three such pairs; delta is (n_X, n_Y).
double separable_minimum(View<double> delta, View<double> rho_x, View<double> rho_y, double discount);

/// A table (n_X, n_Y), and what plans and potentials prove about it.
struct Tables {
    View<double> U;
    View<double> lower, upper;  // T_l U ≤ T U ≤ T_u U
    double slack;  // largest effect of rounding on lower - U and upper - U
};

/// The discounted occupancies of the two chains.
struct Occupancies {
    View<double> x, y;
};

/// Bounds on the distance by separable corrections, in the user's units, from bounds on OT_U of the starts.
Interval separable_bounds(const Tables& tables, Interval start, const Occupancies& rho, double discount, const CostRange& costs);

}  // namespace engine
