// Dense linear systems A X = B by Gaussian elimination with row exchanges.
//
// LAPACK would be faster for large systems, but its last digits depend on the processor. Here every entry goes through
// the same sequence of operations, a_ij ← a_ij - l_ik u_kj for k = 0, 1, …, whatever the order of the loops around them.
// So elimination can go by panels of columns that fit the cache: after a panel, all rows below it are updated by its
// columns at once, a few rows and one or two registers of columns at a time.
//
// The cost is n³/3 products for n unknowns, and n² for every right-hand side.
#pragma once

#include "parallel.hpp"

namespace engine {

/// A system of n equations with m right-hand sides; both arrays are overwritten, B by the solution.
struct DenseSystem {
    Out<double> A;  // (n, n) by rows
    Out<double> B;  // (n, m) by rows
    Index n, m;
};

/// Solve the system; returns false if a pivot is zero or not a number.
bool solve_dense(const DenseSystem& system, Team& team);

}  // namespace engine
