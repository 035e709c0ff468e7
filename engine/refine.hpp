// Partition refinement: the coarsest partition of the states that is finer than a given one and stable.
//
// A partition is *stable* if for every class C and every action, the states of one class move into C with the same
// probability, up to `tolerance` between neighbors in the order of these probabilities. See diffbisim/processes/lumping.py for
// what this means for chains and MDPs.
//
// The data structure is that of Valmari & Franceschinis (TACAS 2010): the states are in one array and each class is a
// slice of it, so that a class is split by reordering its slice. Each round takes a class C (the splitter) off a list,
// sums the probabilities of moving into C along *incoming* edges, and splits every class B that was reached wherever
// the sorted sums of its states have a gap above the tolerance; states that were not reached have the sum zero. The
// largest part keeps the number of B, and its position on the list if it has one; the others get new numbers and are
// added to the list. If B was not on the list, the largest part can be skipped, since the probability of moving into B
// as a whole was compared before. Hence a state is in at most 1 + log2 n splitters per pass: O(m log n) edges for m
// transitions, plus sorting.
//
// *Actions.* An MDP has one kernel per action, and each splitter is used for all of them. The splitter stays the set
// taken off the list, even if it is itself split under an earlier action.
//
// With a tolerance, the skipped comparisons hold only up to a few tolerances, so passes over all classes are repeated
// until one of them splits nothing, usually the second.
//
// Sums are taken in the order of the members of the splitter, and sorting is stable: the result is the same on every
// machine.
#pragma once

#include "parallel.hpp"

namespace engine {

/// The predecessors of state t under action a: entries first[k] … first[k + 1] - 1 with k = a n + t, for n states.
struct Incoming {
    View<Index> first;
    View<Index> sources;
    View<double> probabilities;
};

struct Refinement {
    std::vector<Index> classes;  // the class of every state, 0 … n_classes - 1
    Index n_classes;
    Index edges_visited;
};

/// Refine the partition `classes` (numbers 0 … n_classes - 1) to a stable one.
Refinement refine(const Incoming& incoming, View<Index> classes, Index n_classes, double tolerance, Watch& watch);

}  // namespace engine
