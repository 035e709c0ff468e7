#include "evaluation.hpp"

#include <cmath>

namespace engine {
namespace {

/// Sweeps continue while at most AHEAD more are expected to suffice, and MOST_SWEEPS at most. One step of BiCGStab takes two
/// products and several passes over five vectors.
constexpr int AHEAD = 12, MOST_SWEEPS = 60;

/// The same for occupancies, whose products cost more than other passes. Mass that starts at few pairs spreads slowly at
/// first, so the first sweeps are not judged.
constexpr int AHEAD_BACKWARD = 30, MOST_SWEEPS_BACKWARD = 120, NOT_JUDGED = 12;

/// Iterations of BiCGStab.
constexpr Index MOST_STEPS = 150, MOST_STEPS_BACKWARD = 200;

/// A level of the search for visited pairs that has more than this share of all pairs is found again in ascending order.
constexpr Index MANY = 32;

/// The least and the largest change in a sweep.
struct Range {
    double low = INF, high = -INF;

    ALWAYS_INLINE void add(double change) {
        low = change < low ? change : low, high = change > high ? change : high;
    }
    void add(const Range& more) { low = std::min(low, more.low), high = std::max(high, more.high); }
    double spread() const { return high - low; }
};

/// Whether to continue sweeping, given a measure of the change in the last sweep and in the one before.
bool pays(double now, double before, double target, int ahead) {
    if (!(2 * target < now && now < before)) return false;
    double expected = now;
    for (int k = 0; k < ahead; ++k) expected *= now / before;
    return expected <= 2 * target;
}

/// Call body(lo, hi, watch) -> Range on pieces of 0 … size - 1; returns the range of all.
template <class Body> Range ranged(Team& team, Index size, double work, Body&& body) {
    Range all;
    std::mutex guard;
    split(team, size, work, [&](Index lo, Index hi, Watch& watch) {
        const Range found = body(lo, hi, watch);
        const std::lock_guard lock(guard);
        all.add(found);
    });
    return all;
}

/// Rows between two checks whether to stop.
constexpr Index ROWS_AT_ONCE = 1024;

/// Call store(z, (Π v)_z) for the pairs 0 … size - 1, with all threads.
template <class Number, class Flow, class Store>
void for_means(Team& team, const Plans<Number, Flow>& plans, const Flow* v, Index size, Store&& store) {
    split(team, size, plans.work(), [&](Index lo, Index hi, Watch& watch) {
        const Number* target = plans.target.data();
        const Flow* flow = plans.flow.data();
        for (Index from = lo; from < hi; from += ROWS_AT_ONCE) {
            const Index to = std::min(from + ROWS_AT_ONCE, hi);
            Index entries = 0;
            for (Index z = from; z < to; ++z) {
                const Index k = plans.row_of(z), end = plans.first[k + 1];
                Flow total = 0;
                for (Index e = plans.first[k]; e < end; ++e) total += flow[e] * v[target[e]];
                entries += end - plans.first[k];
                store(z, total);
            }
            watch.spend(entries + to - from);
        }
    });
}

/// out = source + γ Π v; returns the range of the changes.
template <class Number, class Flow>
Range sweep_rows(Team& team, const Plans<Number, Flow>& plans, Flow discount, const Flow* source, const Flow* v, Flow* out, Index size) {
    return ranged(team, size, plans.work(), [&](Index lo, Index hi, Watch& watch) {
        const Number* target = plans.target.data();
        const Flow* flow = plans.flow.data();
        Range found;
        for (Index from = lo; from < hi; from += ROWS_AT_ONCE) {
            const Index to = std::min(from + ROWS_AT_ONCE, hi), first = plans.first[from];
            Index e = first;
            for (Index z = from; z < to; ++z) {
                const Index end = plans.first[z + 1];
                Flow total = 0;
                for (; e < end; ++e) total += flow[e] * v[target[e]];
                const Flow fresh = source[z] + discount * total;
                found.add(double(fresh - v[z]));
                out[z] = fresh;
            }
            watch.spend(e - first + to - from);
        }
        return found;
    });
}

}  // namespace

// --- the transpose -----------------------------------------------------------------------------------------------

TransposedPlans::TransposedPlans(Team& team, const AnyPlans& plans, Index size, View<bool> visited)
    : size_(size), windows_((size + WINDOW - 1) / WINDOW), first_(blocks() * windows_ + 1) {
    std::visit([&](const auto& rows) { fill(team, rows, visited); }, plans);
}

/// A counting sort by blocks of targets and windows of sources. Pieces of the sources count and write on their own; their number changes nothing.
template <class Number> void TransposedPlans::fill(Team& team, const Plans<Number, double>& plans, View<bool> visited) {
    const Index n = blocks() * windows_, pieces = std::min<Index>(team.threads() == 1 || plans.work() < team.share() ? 1 : 4 * team.threads(), size_);
    std::vector<std::vector<Index>> next(pieces, std::vector<Index>(n));  // in every piece: counts, then the place to write
    const auto for_entries = [&](auto&& body) {
        split(team, pieces, plans.work(), [&](Index from, Index to, Watch& watch) {
            for (Index k = from; k < to; ++k) {
                Index* own = next[k].data();
                for (Index z = size_ * k / pieces; z < size_ * (k + 1) / pieces; ++z) {
                    watch.spend(2);
                    if (!visited.empty() && !visited[z]) continue;
                    const Index row = plans.row_of(z), end = plans.first[row + 1];
                    for (Index e = plans.first[row]; e < end; ++e)
                        if (plans.flow[e] != 0.0) body(own, z, e);
                    watch.spend(2 * (end - plans.first[row]));
                }
            }
        });
    };
    const auto bucket_of = [&](Index z, std::uint64_t target) { return Index(target / BLOCK) * windows_ + z / WINDOW; };
    for_entries([&](Index* count, Index z, Index e) { ++count[bucket_of(z, std::uint64_t(plans.target[e]))]; });
    Index total = 0;
    for (Index b = 0; b < n; ++b) {
        first_[b] = total;
        for (std::vector<Index>& of_piece : next) total += std::exchange(of_piece[b], total);
    }
    first_[n] = total;
    places_ = LargeArray<std::uint32_t>(total), flow_ = LargeArray<double>(total);
    for_entries([&](Index* place, Index z, Index e) {
        const std::uint64_t target = std::uint64_t(plans.target[e]);
        const Index at = place[bucket_of(z, target)]++;
        places_[at] = std::uint32_t(z % WINDOW) << TARGET_BITS | std::uint32_t(target % BLOCK), flow_[at] = plans.flow[e];
    });
}

template <class Finish> void TransposedPlans::push(Team& team, View<double> v, Out<double> out, Finish&& finish) const {
    split(team, blocks(), work(), [&](Index from, Index to, Watch& watch) {
        for (Index b = from; b < to; ++b) {
            const Index lo = b * BLOCK, hi = std::min(lo + BLOCK, size_);
            const Index* const first = first_.data() + b * windows_;
            double* const sums = out.data() + lo;
            std::fill(sums, sums + (hi - lo), 0.0);
            for (Index w = 0; w < windows_; ++w) {
                const double* const masses = v.data() + w * WINDOW;
                for (Index e = first[w]; e < first[w + 1]; ++e)
                    sums[places_[e] % BLOCK] += flow_[e] * masses[places_[e] >> TARGET_BITS];
            }
            finish(lo, hi);
            watch.spend(2 * (first[windows_] - first[0]) + hi - lo + windows_);
        }
    });
}

// --- chains ------------------------------------------------------------------------------------------------------

void PairChain::multiply(Team& team, View<double> v, Out<double> out) const {
    ++products_;
    std::visit([&](const auto& plans) {
        for_means(team, plans, v.data(), Index(out.size()), [&](Index z, double mean) { out[z] = mean; });
    }, plans_);
}

const TransposedPlans& PairChain::transposed(Team& team) const {
    const std::lock_guard lock(guard_);
    if (!transposed_) transposed_ = std::make_unique<const TransposedPlans>(team, plans_, size_);
    return *transposed_;
}

void PairChain::apply(Team& team, System system, View<double> v, Out<double> out) const {
    ++products_;
    const double γ = system.discount;
    if (!system.transposed) {
        std::visit([&](const auto& plans) {
            for_means(team, plans, v.data(), size_, [&](Index z, double mean) { out[z] = v[z] - γ * mean; });
        }, plans_);
        return;
    }
    transposed(team).push(team, v, out, [&](Index lo, Index hi) {
        for (Index z = lo; z < hi; ++z) out[z] = v[z] - γ * out[z];
    });
}

double PairChain::solve(Team& team, System system, View<double> source, Out<double> u, double target, Index max_iterations) const {
    const auto product = [&](View<double> v, Out<double> out) { apply(team, system, v, out); };
    return bicgstab(team, product, source, u, target, max_iterations);
}

void PairChain::sweep(Team& team, System system, View<double> source, Out<double> u, Index times) const {
    engine::sweep(team, [&](View<double> v, Out<double> out) { apply(team, system, v, out); }, source, u, times);
}

bool PairChain::relax(Team& team, double discount, View<double> source, Out<double> U, Out<double> spare, double target) const {
    Out<double> tables[2] = {U, spare};
    Range change;
    double spread = INF;
    int k = 0;
    for (bool more = true; more && k < MOST_SWEEPS; ++k) {
        ++products_;
        change = std::visit([&](const auto& plans) {
            return sweep_rows(team, plans, discount, source.data(), tables[k % 2].data(), tables[1 - k % 2].data(), size_);
        }, plans_);
        const double before = std::exchange(spread, change.spread());
        more = pays(spread, before, target, AHEAD);
    }
    const double constant = discount / (1 - discount) * (change.low + change.high) / 2;
    const Out<double> last = tables[k % 2];
    for (Index z = 0; z < size_; ++z) U[z] = last[z] + constant;
    return spread <= 2 * target;
}

void PairChain::mark_visited(View<double> source, Out<bool> visited, Watch& watch) const {
    std::visit([&](const auto& plans) {
        std::vector<Index> level, next;
        std::vector<bool> done(size_);
        for (Index z = 0; z < size_; ++z)
            if ((visited[z] = source[z] != 0.0)) level.push_back(z);
        const auto follow = [&](Index z, auto&& found) {
            done[z] = true;
            const Index k = plans.row_of(z), end = plans.first[k + 1];
            for (Index e = plans.first[k]; e < end; ++e) {
                const Index to = plans.target[e];
                if (!(plans.flow[e] > 0.0) || visited[to]) continue;
                visited[to] = true;
                found(to);
            }
            watch.spend(2 * (end - plans.first[k]));
        };
        while (!level.empty()) {
            next.clear();
            if (Index(level.size()) < size_ / MANY) {
                for (const Index z : level) follow(z, [&](Index to) { next.push_back(to); });
            } else {  // in ascending order, which is faster, including pairs of the next level that come later
                for (Index z = 0; z < size_; ++z) {
                    if (!visited[z] || done[z]) continue;
                    done[z] = true;
                    const Index k = plans.row_of(z), end = plans.first[k + 1];
                    for (Index e = plans.first[k]; e < end; ++e) visited[plans.target[e]] |= plans.flow[e] > 0.0;
                    watch.spend(2 * (end - plans.first[k]));
                }
                for (Index z = 0; z < size_; ++z)
                    if (visited[z] && !done[z]) next.push_back(z);
            }
            std::swap(level, next);
        }
    }, plans_);
}

double PairChain::solve_by(
    Team& team, const TransposedPlans& plans, double discount, View<double> source, Out<double> u, double target, Index most
) const {
    const auto product = [&](View<double> v, Out<double> out) {
        ++products_;
        plans.push(team, v, out, [&](Index lo, Index hi) {
            for (Index z = lo; z < hi; ++z) out[z] = v[z] - discount * out[z];
        });
    };
    return bicgstab(team, product, source, u, target, most);
}

double PairChain::occupancy(
    Team& team, double discount, View<double> source, View<bool> visited, Out<double> m, double target
) const {
    const TransposedPlans plans(team, plans_, size_, visited);
    LargeArray<double> spare(size_);
    for (Index z = 0; z < size_; ++z) m[z] = visited[z] ? m[z] : 0.0;
    std::vector<Index> starts;  // few, as a rule: most pairs have no source
    for (Index z = 0; z < size_; ++z)
        if (source[z] != 0.0) starts.push_back(z);
    const double mass = sum_of(size_, [&](Index z) { return m[z]; });
    for (Index z = 0; z < size_; ++z) m[z] = mass > 0.0 ? m[z] / mass : source[z];
    Out<double> now = m, next = spare;
    double worst = INF;
    bool more = true;
    for (int k = 0; more && k < MOST_SWEEPS_BACKWARD; ++k) {
        ++products_;
        double change = 0.0;
        std::mutex guard;
        plans.push(team, now, next, [&](Index lo, Index hi) {
            double* const fresh = next.data() + lo;
            for (Index j = 0; j < hi - lo; ++j) fresh[j] *= discount;
            for (auto z = std::lower_bound(starts.begin(), starts.end(), lo); z < starts.end() && *z < hi; ++z) next[*z] += source[*z];
            const double largest = largest_difference(fresh, now.data() + lo, hi - lo);
            const std::lock_guard lock(guard);
            change = std::max(change, largest);
        });
        std::swap(now, next);
        const double before = std::exchange(worst, change);
        more = worst > 2 * target && (k < NOT_JUDGED || pays(worst, before, target, AHEAD_BACKWARD));
    }
    if (now.data() != m.data()) std::copy(now.begin(), now.end(), m.begin());
    if (worst <= 2 * target) return worst;
    return solve_by(team, plans, discount, source, m, target, MOST_STEPS_BACKWARD);
}

// --- in single precision -----------------------------------------------------------------------------------------

namespace {

/// Sweeps over stored rows.
struct RowSweeps {
    const Plans<std::int32_t, float>& plans;
    Index size;

    Range operator()(Team& team, float discount, const float* source, const float* v, float* out) const {
        return sweep_rows(team, plans, discount, source, v, out, size);
    }
};

/// Sweeps over the plans of narrow trees, with targets that are stored or read from the trees.
template <class Int> struct NarrowSweeps {
    const Items& items;
    const Trees<Int>& trees;
    const SinglePlans& plans;

    Range operator()(Team& team, float discount, const float* source, const float* v, float* out) const {
        const Index m_y = items.y.size();
        return ranged(team, items.size(), double(plans.flow.size()), [&](Index lo, Index hi, Watch& watch) {
            std::vector<Index> place(plans.target.empty() ? items.x.longest() + items.y.longest() : 0);
            Index e = trees.first_edge(items, lo);
            Range found;
            for (Index z = lo; z < hi;) {
                const Index i = z / m_y, end = std::min(hi, (i + 1) * m_y), first = e;
                e = plans.target.empty() ? by_trees(i, z, end, e, place, discount, source, v, out, found)
                                         : by_targets(i, z, end, e, discount, source, v, out, found);
                watch.spend(e - first + end - z);
                z = end;
            }
            return found;
        });
    }

  private:
    /// The pairs z … end - 1 of row i of X, with edges from e on; returns the next edge.
    Index by_targets(
        Index i, Index z, Index end, Index e, float discount, const float* source, const float* v, float* out, Range& found
    ) const {
        const std::int32_t* target = plans.target.data();
        const float* flow = plans.flow.data();
        const Index a = items.x.length(i), *y = items.y.first.data() + z - i * items.y.size();
        float low = std::numeric_limits<float>::infinity(), high = -low;
        for (; z < end; ++z, ++y) {
            const Index last = e + a + y[1] - y[0] - 1;
            float total = 0.0f;
            for (; e < last; ++e) total += flow[e] * v[target[e]];
            store(z, total, discount, source, v, out, low, high);
        }
        found.add(low), found.add(high);
        return e;
    }

    /// The same with targets from the trees: the cell of two nodes is at the sum of their places.
    Index by_trees(
        Index i, Index z, Index end, Index e, std::vector<Index>& place, float discount, const float* source, const float* v, float* out,
        Range& found
    ) const {
        const Int *child = trees.child.data(), *parent = trees.parent.data();
        const float* flow = plans.flow.data();
        const View<Index> rows = items.x.states_of(i);
        const Index a = Index(rows.size());
        for (Index s = 0; s < a; ++s) place[s] = rows[s] * items.n_y;
        float low = std::numeric_limits<float>::infinity(), high = -low;
        for (; z < end; ++z) {
            const View<Index> cols = items.y.states_of(z - i * items.y.size());
            std::copy(cols.begin(), cols.end(), place.begin() + a);
            const Index last = e + a + Index(cols.size()) - 1;
            float total = 0.0f;
            for (; e < last; ++e) total += flow[e] * v[place[child[e]] + place[parent[e]]];
            store(z, total, discount, source, v, out, low, high);
        }
        found.add(low), found.add(high);
        return e;
    }

    static ALWAYS_INLINE void store(
        Index z, float total, float discount, const float* source, const float* v, float* out, float& low, float& high
    ) {
        const float fresh = source[z] + discount * total, change = fresh - v[z];
        low = change < low ? change : low, high = change > high ? change : high;
        out[z] = fresh;
    }
};

template <class Sweep>
Corrected correct_by(Team& team, const Sweep& sweep, double discount, View<float> r, Out<float> one, Out<float> two, double target) {
    const Out<float> spare[2] = {one, two};
    const float* v = r.data();
    const float γ = float(discount);
    Range change;
    double spread = INF;
    int k = 0;
    for (bool more = true; more && k < MOST_SWEEPS; ++k) {
        change = sweep(team, γ, r.data(), v, spare[k % 2].data());
        v = spare[k % 2].data();
        const double before = std::exchange(spread, change.spread());
        more = pays(spread, before, target, AHEAD);
    }
    Corrected found{true, (k - 1) % 2 == 1, discount / (1 - discount) * (change.low + change.high) / 2, k};
    if (spread <= 2 * target) return found;
    found.constant = 0.0;
    const auto product = [&](View<float> u, Out<float> out) {
        ++found.products;
        sweep(team, -γ, u.data(), u.data(), out.data());
    };
    found.solved = bicgstab(team, product, r, spare[(k - 1) % 2], target, MOST_STEPS) <= 2 * target;
    return found;
}

template <class Sweep>
void sweep_by(Team& team, const Sweep& sweep, double discount, View<float> r, Out<float> delta, Out<float> spare, Index times) {
    for (Index k = 0; k < times; k += 2) {
        sweep(team, float(discount), r.data(), delta.data(), spare.data());
        sweep(team, float(discount), r.data(), spare.data(), delta.data());
    }
}

}  // namespace

Corrected correct(
    Team& team, const Plans<std::int32_t, float>& plans, double discount, View<float> r, Out<float> one, Out<float> two, double target
) {
    return correct_by(team, RowSweeps{plans, Index(r.size())}, discount, r, one, two, target);
}

Corrected correct(
    Team& team, const Transports& transports, const SinglePlans& plans, double discount, View<float> r, Out<float> one, Out<float> two,
    double target
) {
    return std::visit([&]<class Int>(const Trees<Int>& trees) {
        return correct_by(team, NarrowSweeps<Int>{transports.items, trees, plans}, discount, r, one, two, target);
    }, transports.trees);
}

void sweep_correction(
    Team& team, const Plans<std::int32_t, float>& plans, double discount, View<float> r, Out<float> delta, Out<float> spare, Index times
) {
    sweep_by(team, RowSweeps{plans, Index(r.size())}, discount, r, delta, spare, times);
}

void sweep_correction(
    Team& team, const Transports& transports, const SinglePlans& plans, double discount, View<float> r, Out<float> delta, Out<float> spare,
    Index times
) {
    std::visit([&]<class Int>(const Trees<Int>& trees) {
        sweep_by(team, NarrowSweeps<Int>{transports.items, trees, plans}, discount, r, delta, spare, times);
    }, transports.trees);
}

}  // namespace engine
