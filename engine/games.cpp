#include "games.hpp"

#include <mutex>

#include "staying.hpp"

namespace engine {
namespace {

/// The least δ of a line, and the index of its choice.
struct Least {
    double value;
    Index choice;
};

/// The least δ of a line at the pair whose choices begin at `first`.
ALWAYS_INLINE Least least_of_line(View<Index> line, const double* delta, Index first) {
    Least least{delta[first + line[0]], first + line[0]};
    for (std::size_t e = 1; e < line.size(); ++e) {
        const Index k = first + line[e];
        if (delta[k] < least.value) least = {delta[k], k};
    }
    return least;
}

/// Whether a side has all states as successors of all of its rows.
bool is_full(const Rows& rows, Index n) { return Index(rows.states.size()) == rows.size() * n; }

// --- improvement -------------------------------------------------------------------------------------------------

/// What an improvement starts from, for all threads.
struct Start {
    View<double> W;
    Basis basis;
    double price;
    View<std::int32_t> nearest;  // (n*n,) where first bases of a hollow game between full rows are built; else empty
};

/// An improvement of some pairs, on one thread.
template <class Int> class Improvement {
  public:
    Improved done;

    Improvement(const Game& game, const Trees<Int>& trees, const Start& start, Watch& watch)
        : items_(game.items), trees_(trees), rules_(game.rules), moves_(game.moves), targets_(game.targets), start_(start),
          scratch_(items_.x.longest(), items_.y.longest(), watch),
          reduced_(rules_.hollow ? items_.x.longest() : 0, rules_.hollow ? items_.y.longest() : 0),
          delta_(moves_.delta.data()), n_choices_(moves_.n_choices()), solved_(std::size_t(n_choices_)),
          closed_(std::size_t(rules_.n_lines())) {
        const Index n_x = Index(start.W.size()) / items_.n_y;
        full_ = is_full(items_.x, n_x) && is_full(items_.y, items_.n_y);
    }

    /// Compute T W at pair p, and the moves that attain it.
    void improve(Index p) {
        const Index first = p * n_choices_;
        begin(first);
        std::fill(solved_.begin(), solved_.end(), start_.price == INF);
        std::fill(closed_.begin(), closed_.end(), false);
        Least best{-INF, -1};
        Index line = -1;
        while (true) {
            const auto [open, bound] = worst_line(first);
            if (open < 0 || bound.value <= best.value) break;
            solve_line(open, first, bound.choice);
            closed_[open] = true;
            const Least found = least_of_line(rules_.line(open), delta_, first);
            if (found.value > best.value) best = found, line = open;
        }
        moves_.value[p] = best.value, moves_.line[p] = line, moves_.chosen[p] = best.choice;
    }

  private:
    const Items& items_;
    const Trees<Int>& trees_;
    const Rules& rules_;
    const Moves& moves_;
    const Targets& targets_;
    const Start& start_;
    ItemScratch scratch_;
    Reduced<Int> reduced_;
    double* delta_;
    Index n_choices_;
    std::vector<char> solved_, closed_;  // which choices and which lines of the present pair are solved
    bool full_;

    Workspace& work() { return scratch_.simplex; }
    Costs costs(const Item<Int>& item) { return costs_of(start_.W, items_.n_y, item.rows, item.cols, scratch_.costs.data()); }
    double value_of(Index k, double transport) const { return rules_.base[k] + rules_.discount * transport; }

    /// Give the choices of a pair plans for the present marginals, and bounds on their δ.
    void begin(Index first) {
        if (start_.basis == Basis::FEASIBLE) return;
        for (Index k = first; k < first + n_choices_; ++k) {
            const Item<Int> item = item_of(k, items_, trees_);
            const double value = start_.basis == Basis::NONE ? first_basis(k, item) : adapted_basis(k, item);
            delta_[k] = value_of(k, value);
            read_targets(k, item);
            work().watch->spend(item.a() * item.b());
        }
    }

    /// Build a first basis of item k, or the better of two; returns its value.
    double first_basis(Index k, const Item<Int>& item) {
        Workspace& w = work();
        if (!start_.nearest.empty()) {
            const double value = staying_full(item, start_.W, start_.nearest, w.net);
            if (value < INF) return value;
        }
        const Costs c = costs(item);
        const auto [i, j] = items_.rows_of(k);
        const Index *order_x = items_.order_x.data() + items_.x.first[i], *order_y = items_.order_y.data() + items_.y.first[j];
        northwest_corner(item.m, order_x, order_y, c.a, c.b, item.tree);
        const double value = tree_value(item.tree, c);
        bool built = true;
        if (rules_.hollow) {
            built = reduced_.first_basis(item, start_.W, items_.n_y, w);
        } else {
            greedy(c, item.m, item.tree, w);
        }
        const double other = built ? tree_value(item.tree, c) : INF;
        if (value <= other) northwest_corner(item.m, order_x, order_y, c.a, c.b, item.tree);
        return std::min(value, other);
    }

    /// Turn the tree of item k, which was made for other marginals, into a basis; returns its value.
    double adapted_basis(Index k, const Item<Int>& item) {
        Workspace& w = work();
        const auto [below, clipped] = tree_flows(item.tree, item.m, item.a(), item.b(), w.net);
        if (below < 0.0) {
            Pivoted repaired{0, false};
            const Costs c = costs(item);
            if (-below <= STALE) repaired = repair(c, scratch_.columns_of(c), item.tree, w);
            done.pivots += repaired.pivots;
            if (!repaired.done) return first_basis(k, item);
            done.clipped = std::max(done.clipped, true_flows(item.tree, item.m, item.a(), item.b(), w.net));
        } else {
            done.clipped = std::max(done.clipped, clipped);
        }
        return tree_value(item.tree, costs(item));
    }

    /// The open line with the largest bound and that bound; -1 if all are closed.
    std::pair<Index, Least> worst_line(Index first) const {
        Least top{-INF, -1};
        Index worst = -1;
        for (Index n = 0; n < rules_.n_lines(); ++n) {
            if (closed_[n]) continue;
            const Least bound = least_of_line(rules_.line(n), delta_, first);
            if (bound.value > top.value) top = bound, worst = n;
        }
        return {worst, top};
    }

    /// Solve the choices of a line that can be the least, first the one with the least bound.
    void solve_line(Index n, Index first, Index nearest) {
        double least = INF;
        const auto visit = [&](Index k) {
            if (solved_[k - first] || (least < INF && at_least(k) >= least)) return;
            solve(k);
            solved_[k - first] = true;
            if (full_) least = std::min(least, delta_[k]);
        };
        visit(nearest);
        for (const Index c : rules_.line(n)) visit(first + c);
    }

    /// A lower bound on δ of choice k between full rows, from the potentials of any other choice.
    double at_least(Index k) {
        const auto [i, j] = items_.rows_of(k);
        const View<double> p = items_.x.probabilities_of(i), q = items_.y.probabilities_of(j);
        const Index a = Index(p.size()), b = Index(q.size());
        const double *f = work().pot, *g = f + a;
        const double total = dot(p.data(), f, a) + dot(q.data(), g, b);
        const double size = sum_of(a, [=](Index s) { return p[s] * std::abs(f[s]); }) + sum_of(b, [=](Index t) { return q[t] * std::abs(g[t]); });
        return value_of(k, total - start_.price - double(a + b) * EPS * size);
    }

    /// δ of choice k, with an optimal plan.
    void solve(Index k) {
        Workspace& w = work();
        const Item<Int> item = item_of(k, items_, trees_);
        const Costs c = costs(item);
        Swept found;
        bool optimal = false;
        if (rules_.hollow && c.a * c.b >= MIN_CELLS_TO_REDUCE) {
            optimal = is_priced_out(c, item.tree, w.pot, start_.price);
            if (!optimal) found = reduced_.solve(item, start_.W, items_.n_y, w, start_.price);
            w.watch->spend(c.a * c.b);
        }
        if (!optimal) {
            const Pivoted rest = optimize(c, item.tree, w, start_.price);
            if (rest.pivots > 0) found.clipped = std::max(found.clipped, true_flows(item.tree, item.m, c.a, c.b, w.net));
            found.pivots += rest.pivots, found.failed = !rest.done;
        }
        delta_[k] = value_of(k, tree_value(item.tree, c));
        if (found.pivots > 0) read_targets(k, item);
        done.add({found, 1});
    }

    /// Update the pairs that the edges of item k lead to.
    void read_targets(Index k, const Item<Int>& item) {
        std::int32_t* to = targets_.target.data() + trees_.first_edge(items_, k);
        for (Index e = 0; e < item.tree.edges; ++e) {
            const auto [s, t] = cell_of(item.tree.child[e], item.tree.parent[e], item.a());
            to[e] = std::int32_t(targets_.numbers[item.rows[s] * items_.n_y + item.cols[t]]);
        }
    }
};

// --- moves for the present plans ---------------------------------------------------------------------------------

/// The plans of all choices as rows over pairs, and the moves, for any type of trees.
struct PresentPlans {
    View<Index> at;
    View<std::int32_t> target;
    View<double> flow;
    const Rules& rules;
    const Moves& moves;
    const Selected& selected;

    explicit PresentPlans(const Game& game)
        : target(game.targets.target), rules(game.rules), moves(game.moves), selected(game.selected) {
        std::visit([this](const auto& trees) { at = trees.at, flow = trees.flow; }, game.trees);
    }

    /// δ of choice k with its present plan.
    double delta(Index k, const double* u) const {
        double total = 0.0;
        for (Index e = at[k]; e < at[k + 1]; ++e) total += flow[e] * u[target[e]];
        return rules.base[k] + rules.discount * total;
    }

    /// Copy the plan that pair p uses.
    void select(Index p) const {
        const Index first = at[moves.chosen[p]], n = at[moves.chosen[p] + 1] - first, to = selected.first[p];
        const Index space = selected.first[p + 1] - to;
        for (Index e = 0; e < space; ++e) {
            selected.target[to + e] = e < n ? target[first + e] : std::int32_t(p);
            selected.flow[to + e] = e < n ? float(flow[first + e]) : 0.0F;
        }
    }

    /// The best moves at pair p; returns the change of its value.
    double improve_line(Index p, const double* u, double tie) const {
        const Index n_choices = moves.n_choices(), first = p * n_choices, before = moves.chosen[p];
        double* values = moves.delta.data();
        for (Index k = first; k < first + n_choices; ++k) values[k] = delta(k, u);
        const Least present = least_of_line(rules.line(moves.line[p]), values, first);
        if (values[before] > present.value + tie) moves.chosen[p] = present.choice;
        Least best = present;
        Index line = moves.line[p];
        for (Index n = 0; n < rules.n_lines(); ++n) {
            const Least found = least_of_line(rules.line(n), values, first);
            if (found.value > best.value) best = found, line = n;
        }
        if (best.value > present.value + tie) moves.line[p] = line, moves.chosen[p] = best.choice;
        if (!selected.residual.empty()) {
            selected.residual[p] = float(values[moves.chosen[p]] - u[p]);
            if (moves.chosen[p] != before) select(p);
        }
        return best.value - u[p];
    }

    /// The best choice within the line of pair p; returns how much it gains.
    double improve_choice(Index p, const double* u, double tie) const {
        const Index first = p * moves.n_choices(), before = moves.chosen[p];
        double present = INF;
        Least least{INF, before};
        for (const Index c : rules.line(moves.line[p])) {
            const double value = delta(first + c, u);
            if (first + c == before) present = value;
            if (value < least.value) least = {value, first + c};
        }
        const bool better = present > least.value + tie;
        if (better) moves.chosen[p] = least.choice;
        if (!selected.residual.empty()) {
            selected.residual[p] = float((better ? least.value : present) - u[p]);
            if (better) select(p);
        }
        return better ? present - least.value : 0.0;
    }
};

/// Call visit(p) for all pairs with all threads.
template <class Visit> void for_pairs(Team& team, const PresentPlans& plans, Visit&& visit) {
    split(team, plans.moves.n_pairs(), double(plans.flow.size()), [&](Index lo, Index hi, Watch& watch) {
        const Index n_choices = plans.moves.n_choices();
        for (Index p = lo; p < hi; ++p) {
            visit(p);
            watch.spend(plans.at[(p + 1) * n_choices] - plans.at[p * n_choices]);
        }
    });
}

/// Combine what visit(p) returns over all pairs by merge(into, more), which gives the same in any order.
template <class Value, class Visit, class Merge>
Value merged(Team& team, const PresentPlans& plans, Value start, Visit&& visit, Merge&& merge) {
    Value total = start;
    std::mutex guard;
    split(team, plans.moves.n_pairs(), double(plans.flow.size()), [&](Index lo, Index hi, Watch& watch) {
        const Index n_choices = plans.moves.n_choices();
        Value part = start;
        for (Index p = lo; p < hi; ++p) {
            merge(part, visit(p));
            watch.spend(plans.at[(p + 1) * n_choices] - plans.at[p * n_choices]);
        }
        const std::lock_guard lock(guard);
        merge(total, part);
    });
    return total;
}

}  // namespace

Improved improve_pairs(Team& team, const Game& game, View<double> W, Basis basis, double price) {
    const Index n_x = Index(W.size()) / game.items.n_y;
    const bool full = is_full(game.items.x, n_x) && is_full(game.items.y, game.items.n_y);
    std::vector<std::int32_t> nearest;
    if (game.rules.hollow && full && basis != Basis::FEASIBLE) {
        Watch watch(team);
        nearest = nearest_states(W, n_x, watch);
    }
    const Start start{W, basis, price, nearest};
    const double edges = double(game.targets.target.size()), cells = edges * edges / double(game.items.size());
    Improved done;
    std::mutex guard;
    std::visit([&]<class Int>(const Trees<Int>& trees) {
        split(team, game.moves.n_pairs(), cells, [&](Index lo, Index hi, Watch& watch) {
            Improvement<Int> improvement(game, trees, start, watch);
            for (Index p = lo; p < hi; ++p) {
                improvement.improve(p);
                watch.spend(game.moves.n_choices());
            }
            const std::lock_guard lock(guard);
            done.add(improvement.done);
        });
    }, game.trees);
    return done;
}

void select_plans(Team& team, const Game& game) {
    const PresentPlans plans(game);
    for_pairs(team, plans, [&](Index p) { plans.select(p); });
}

Change improve_lines(Team& team, const Game& game, View<double> u, double tie) {
    const PresentPlans plans(game);
    return merged(team, plans, Change{}, [&](Index p) {
        const double change = plans.improve_line(p, u.data(), tie);
        return Change{change, change};
    }, [](Change& into, const Change& more) {
        into = {std::min(into.low, more.low), std::max(into.high, more.high)};
    });
}

double improve_choices(Team& team, const Game& game, View<double> u, double tie) {
    const PresentPlans plans(game);
    return merged(team, plans, 0.0, [&](Index p) { return plans.improve_choice(p, u.data(), tie); }, [](double& into, double more) {
        into = std::max(into, more);
    });
}

}  // namespace engine
