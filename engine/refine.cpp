#include "refine.hpp"

#include <algorithm>
#include <numeric>

namespace engine {
namespace {

/// The states, class by class, and the sums of probabilities into the present splitter.
class Partition {
  public:
    Partition(View<Index> classes, Index n_classes)
        : class_of_(classes.begin(), classes.end()), elements_(classes.size()), place_(classes.size()),
          first_(classes.size() + n_classes), last_(first_.size()), marked_(first_.size()), weight_(classes.size()),
          n_classes_(n_classes) {
        for (const Index b : class_of_) ++last_[b];
        for (Index b = 1; b < n_classes; ++b) first_[b] = first_[b - 1] + last_[b - 1];
        std::copy(first_.begin(), first_.end(), last_.begin());
        for (Index s = 0; s < size(); ++s) {
            place_[s] = last_[class_of_[s]]++;
            elements_[place_[s]] = s;
        }
    }

    Index size() const { return Index(class_of_.size()); }
    Index n_classes() const { return n_classes_; }
    View<Index> members(Index b) const { return View<Index>(elements_).subspan(first_[b], last_[b] - first_[b]); }
    std::vector<Index> take_classes() && { return std::move(class_of_); }

    /// Add to the sum of a state; `reached` gets its class when it is the first of it.
    void add(Index s, double probability, std::vector<Index>& reached) {
        const Index b = class_of_[s], front = first_[b] + marked_[b];
        if (place_[s] >= front) {
            if (marked_[b] == 0) reached.push_back(b);
            exchange(place_[s], front);
            ++marked_[b];
        }
        weight_[s] += probability;
    }

    /// Split class b where its sums have a gap above the tolerance, and set them to zero.
    void split(Index b, double tolerance) {
        const Index first = first_[b], last = last_[b], middle = first + marked_[b];
        sorted_.clear();
        for (Index k = first; k < middle; ++k) sorted_.emplace_back(weight_[elements_[k]], elements_[k]);
        const auto heavier = [](const Sum& one, const Sum& other) { return one.first > other.first; };
        const auto [least, most] = std::minmax_element(sorted_.begin(), sorted_.end());
        const double floor = middle == last ? least->first : 0.0;  // states that were not reached have the sum zero
        if (most->first - floor > tolerance) {
            std::stable_sort(sorted_.begin(), sorted_.end(), heavier);  // the others, at the end, continue the order
            for (Index k = first; k < middle; ++k) {
                elements_[k] = sorted_[k - first].second;
                place_[elements_[k]] = k;
            }
            cuts_.assign(1, first);
            for (Index k = first + 1; k < middle; ++k)
                if (sorted_[k - first - 1].first - sorted_[k - first].first > tolerance) cuts_.push_back(k);
            if (middle < last && sorted_.back().first > tolerance) cuts_.push_back(middle);
            cuts_.push_back(last);
            renumber(b);
        }
        for (const auto& [weight, s] : sorted_) weight_[s] = 0.0;
        marked_[b] = 0;
    }

  private:
    using Sum = std::pair<double, Index>;

    void exchange(Index i, Index j) {
        std::swap(elements_[i], elements_[j]);
        place_[elements_[i]] = i;
        place_[elements_[j]] = j;
    }

    /// Turn each slice between two cuts into a class; the largest keeps the number b.
    void renumber(Index b) {
        std::size_t largest = 0;
        const auto length = [&](std::size_t k) { return cuts_[k + 1] - cuts_[k]; };
        for (std::size_t k = 1; k + 1 < cuts_.size(); ++k)
            if (length(k) > length(largest)) largest = k;
        for (std::size_t k = 0; k + 1 < cuts_.size(); ++k) {
            const Index number = k == largest ? b : n_classes_++;
            first_[number] = cuts_[k], last_[number] = cuts_[k + 1];
            if (k == largest) continue;
            for (Index place = cuts_[k]; place < cuts_[k + 1]; ++place) class_of_[elements_[place]] = number;
        }
    }

    std::vector<Index> class_of_;      // class of each state
    std::vector<Index> elements_;      // states, class by class
    std::vector<Index> place_;         // position of each state in elements_
    std::vector<Index> first_, last_;  // class b is elements_[first_[b]] … elements_[last_[b] - 1]
    std::vector<Index> marked_;        // how many states at the front of each class reach the present splitter
    std::vector<double> weight_;       // probability of moving into the splitter; zero for states that are not marked
    Index n_classes_;
    std::vector<Sum> sorted_;   // workspace of split
    std::vector<Index> cuts_;  // workspace of split
};

}  // namespace

Refinement refine(const Incoming& incoming, View<Index> classes, Index n_classes, double tolerance, Watch& watch) {
    Partition partition(classes, n_classes);
    const Index n = partition.size(), n_columns = Index(incoming.first.size()) - 1;
    std::vector<Index> waiting, members, reached;
    Index visited = 0, before;
    do {
        before = partition.n_classes();
        waiting.resize(before);
        std::iota(waiting.begin(), waiting.end(), Index(0));
        while (!waiting.empty()) {
            const View<Index> splitter = partition.members(waiting.back());
            waiting.pop_back();
            members.assign(splitter.begin(), splitter.end());  // a copy, since splitting reorders
            for (Index column = 0; column < n_columns; column += n) {
                const Index begun = visited;
                reached.clear();
                for (const Index t : members) {
                    const Index from = incoming.first[column + t], to = incoming.first[column + t + 1];
                    for (Index e = from; e < to; ++e)
                        partition.add(incoming.sources[e], incoming.probabilities[e], reached);
                    visited += to - from;
                }
                for (const Index b : reached) {
                    const Index old = partition.n_classes();
                    partition.split(b, tolerance);
                    for (Index fresh = old; fresh < partition.n_classes(); ++fresh) waiting.push_back(fresh);
                }
                watch.spend(8 * (visited - begun) + Index(members.size()));
            }
        }
    } while (partition.n_classes() > before);
    return {std::move(partition).take_classes(), before, visited};
}

}  // namespace engine
