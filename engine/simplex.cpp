#include "simplex.hpp"

namespace engine {

template void northwest_corner(Marginals, const Index*, const Index*, Index, Index, Tree<std::int8_t>);
template void northwest_corner(Marginals, const Index*, const Index*, Index, Index, Tree<std::int16_t>);
template void northwest_corner(Marginals, const Index*, const Index*, Index, Index, Tree<std::int32_t>);
template void greedy(const Costs&, Marginals, Tree<std::int8_t>, Workspace&);
template void greedy(const Costs&, Marginals, Tree<std::int16_t>, Workspace&);
template void greedy(const Costs&, Marginals, Tree<std::int32_t>, Workspace&);
template Pivoted simplex(const Costs&, Tree<std::int8_t>, Workspace&, double, Index);
template Pivoted simplex(const Costs&, Tree<std::int16_t>, Workspace&, double, Index);
template Pivoted simplex(const Costs&, Tree<std::int32_t>, Workspace&, double, Index);
template Pivoted repair(const Costs&, const Costs&, Tree<std::int8_t>, Workspace&);
template Pivoted repair(const Costs&, const Costs&, Tree<std::int16_t>, Workspace&);
template Pivoted repair(const Costs&, const Costs&, Tree<std::int32_t>, Workspace&);

}  // namespace engine
