// Partition refinement, compared with refinement by signatures.
#include "../refine.hpp"

#include <algorithm>
#include <map>

#include "checks.hpp"

namespace {

using engine::Index;

struct Kernels {
    std::vector<Index> first, sources;
    std::vector<double> probabilities;
};

/// Incoming edges of random kernels on n states whose rows have mass in whole 16ths, so that sums are exact.
Kernels random_kernels(Index n, Index n_actions, std::mt19937_64& random) {
    std::vector<std::vector<std::pair<Index, double>>> incoming(n * n_actions);
    for (Index a = 0; a < n_actions; ++a)
        for (Index s = 0; s < n; ++s) {
            std::map<Index, double> row;
            for (int k = 0; k < 16; ++k) row[Index(random() % (1 + random() % n))] += 1.0 / 16;
            for (const auto& [t, p] : row) incoming[a * n + t].emplace_back(s, p);
        }
    Kernels found{{0}, {}, {}};
    for (const auto& column : incoming) {
        for (const auto& [s, p] : column) found.sources.push_back(s), found.probabilities.push_back(p);
        found.first.push_back(Index(found.sources.size()));
    }
    return found;
}

/// Refine by signatures, all classes at once, until nothing changes.
std::vector<Index> by_signatures(const Kernels& kernels, std::vector<Index> classes) {
    const Index n = Index(classes.size()), n_columns = Index(kernels.first.size()) - 1;
    for (std::size_t before = 0;;) {
        std::vector<std::map<std::pair<Index, Index>, double>> into(n);
        for (Index column = 0; column < n_columns; ++column)
            for (Index e = kernels.first[column]; e < kernels.first[column + 1]; ++e)
                into[kernels.sources[e]][{column / n, classes[column % n]}] += kernels.probabilities[e];
        std::map<std::pair<Index, std::map<std::pair<Index, Index>, double>>, Index> number;
        std::vector<Index> next(n);
        for (Index s = 0; s < n; ++s) next[s] = number.try_emplace({classes[s], into[s]}, Index(number.size())).first->second;
        classes = next;
        if (number.size() == before) return classes;
        before = number.size();
    }
}

bool are_equal(const std::vector<Index>& a, const std::vector<Index>& b) {
    std::map<Index, Index> forth, back;
    for (std::size_t s = 0; s < a.size(); ++s)
        if (forth.try_emplace(a[s], b[s]).first->second != b[s] || back.try_emplace(b[s], a[s]).first->second != a[s])
            return false;
    return true;
}

}  // namespace

bool check_refine(std::mt19937_64& random) {
    const Index n = 1 + Index(random() % 40), n_classes = std::min<Index>(n, 1 + Index(random() % 3));
    const Kernels kernels = random_kernels(n, 1 + Index(random() % 3), random);
    std::vector<Index> classes(n);
    for (Index& c : classes) c = Index(random() % n_classes);
    engine::Team team;
    engine::Watch watch(team);
    const auto found = engine::refine({kernels.first, kernels.sources, kernels.probabilities}, classes, n_classes, 1e-12, watch);
    return are_equal(found.classes, by_signatures(kernels, classes));
}
