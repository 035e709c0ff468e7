// Transports of full rows: the optimal tree of one item is repaired into that of the next one.
#pragma once

#include "transports.hpp"

namespace engine {

/// Whether all rows are full and there are enough of them for this solver.
bool fits_dense(const Items& items, Index n_x);

/// The solver, with what it keeps from sweep to sweep.
class Dense {
  public:
    Dense(const Items& items, Index n_x);

    /// values[k] = OT_W of all items; their trees become optimal.
    template <class Int>
    Swept solve(Team& team, const Items& items, const Trees<Int>& trees, View<double> W, const Effort& effort, Out<double> values);
};

}  // namespace engine
