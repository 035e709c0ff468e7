"""The page to look at: what it shows adds up, and it works in a browser, from a disk, at every size and width."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

import diffbisim as db
from command_line import invoke
from diffbisim.processes import examples
from diffbisim.results.base import conditional
from diffbisim.results.page import MAX_GROUPS, explore, page_data

DISCOUNT = 0.9


def stand_in(X, Y):
    """A coupling that needs no solver: the chains side by side, near rewards preferred; plans are products."""
    cost = np.abs(X.rewards[:, None] - Y.rewards[None])
    m = np.outer(X.occupancy(DISCOUNT), Y.occupancy(DISCOUNT)) * np.exp(-20 * cost)
    m /= m.sum()
    value = float((m * cost).sum())

    def plan(i, j):
        return sparse.coo_array(np.outer(X.successors.matrix[[i]].toarray(), Y.successors.matrix[[j]].toarray()))

    problem = SimpleNamespace(x=X, y=Y, cost=cost, criterion="discounted", scale=cost.max(), shape=cost.shape)
    return SimpleNamespace(
        problem=problem, discount=DISCOUNT, value=value, lower=value, upper=value, status="Converged.", converged=True,
        solver="exact", iterations=1, occupancy=m, encoder=conditional(m, cost, cost),
        decoder=conditional(m.T, cost.T, cost.T), values=cost, coupling=SimpleNamespace(plan=plan),
    )  # fmt: skip


def named(seed, n=10):
    P = np.random.default_rng(seed).dirichlet(np.full(n, 0.5), n)
    return db.MarkovChain(P, rewards=np.arange(n) / n, names=["</script><b>", *(f"state {k}" for k in range(1, n))])


def dense(packed, n_columns):
    return sparse.csr_array((packed["v"], packed["j"], packed["p"]), (len(packed["p"]) - 1, n_columns)).toarray()


# --- what is shown ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [10, 170])
def test_what_is_shown_adds_up(n):
    """Whether by state or by group: costs sum to the distance, visits and rows of kernels and encoders to one."""
    d = stand_in(examples.random_chain(n, 0), examples.random_chain(n - 1, 1))
    shown = page_data(d, ("X", "Y"))
    x, y = shown["sides"]
    (view,) = shown["views"]
    width = len(y["sizes"])
    assert max(len(x["sizes"]), width) == min(n, MAX_GROUPS)
    assert sum(x["sizes"]) == n == x["n"]
    assert len(x["states"]) == n
    for total in (sum(view["paid"]["v"]), sum(x["paid"]), sum(y["paid"])):
        assert total == pytest.approx(d.value, rel=1e-3)  # numbers are sent with four digits
    assert sum(view["visits"]["v"]) == pytest.approx(1, rel=1e-3)
    assert dense(view["encoder"], width).sum(axis=1) == pytest.approx(1, rel=1e-3)
    for side in (x, y):
        assert dense(side["transition"], len(side["sizes"])).sum(axis=1) == pytest.approx(1, rel=1e-3)
        assert np.isfinite(side["place"]).all()
    costs = np.sort(d.occupancy * d.problem.cost, axis=None)[::-1]
    assert [row["paid"] for row in view["pairs"]] == pytest.approx(costs[: len(view["pairs"])])


def test_groups_are_of_states_that_behave_alike():
    """Two hundred states of three behaviors fall into groups that do not mix them, in any order of the states."""
    kind = np.random.default_rng(0).integers(3, size=200)
    P = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])[kind][:, kind]
    X = db.MarkovChain(P / P.sum(axis=1, keepdims=True), rewards=kind.astype(float))
    x = page_data(stand_in(X, examples.random_chain(4, 0)), ("X", "Y"))["sides"][0]
    for names in x["members"]:
        assert len({kind[int(name)] for name in names}) == 1


def test_what_cannot_be_shown_is_refused(tmp_path):
    d = stand_in(examples.random_chain(3, 0), examples.random_chain(3, 1))
    with pytest.raises(db.InvalidArgument, match="must end in"):
        explore(d, tmp_path / "page.txt")
    d.problem.x = examples.imitation_chain()
    with pytest.raises(db.InvalidArgument, match="does not compare two Markov chains"):
        explore(d, tmp_path / "page.html")


def test_results_and_the_command_line_write_the_same_page(tmp_path):
    X, Y = examples.birth_death(3, 0.5, 0.2), examples.birth_death(4, 0.5, 0.3)
    db.write_chain(X, tmp_path / "a.npz")
    db.write_chain(Y, tmp_path / "b.npz")
    result = db.distance(X, Y, discount=0.9)
    page = result.explore(tmp_path / "page.html", names=("a", "b"))
    by_command = tmp_path / "other.html"
    words = ["explore", tmp_path / "a.npz", tmp_path / "b.npz", "--discount", 0.9, "-o", by_command, "--json"]
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["distances"] == [result.value]
    shown = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[1])
    assert shown["views"][0]["value"] == result.value
    assert by_command.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    refused = invoke("explore", tmp_path / "a.npz", tmp_path / "b.npz", "--states", "2:3")
    assert refused.exit_code == 2
    assert "--states 2:8" in refused.output


# --- in a browser ----------------------------------------------------------------------------------------------------

SHAPES = "id => (document.getElementById(id).layout.shapes ?? []).length"
#: The disk that stands most alone, and where on the screen.
DISK = """id => {
    const box = document.getElementById(id), disks = box.data.at(-1), { xaxis, yaxis } = box._fullLayout;
    const here = box.getBoundingClientRect();
    const all = disks.x.map((x, k) => [
        here.x + xaxis._offset + xaxis.l2p(x), here.y + yaxis._offset + yaxis.l2p(disks.y[k])]);
    const room = all.map(([a, b], k) => Math.min(...all.map(([c, d], j) => j === k ? 1e9 : Math.hypot(a - c, b - d))));
    const k = room.indexOf(Math.max(...room));
    return [k, ...all[k]];
}"""


def until(page, expression, argument=None):
    """Wait for what the page does when it has time (wait_for_function needs eval, which the page forbids)."""
    for _ in range(3000):
        if page.evaluate(expression, argument):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"never came true: {expression}")


class Opened:
    """A page in a browser, and all that it complained of or fetched."""

    def __init__(self, browser, file, width=1200, scheme="light"):
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints, self.fetched = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("body[data-drawn=all]")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        assert self.complaints == []
        assert len(self.fetched) == 1  # itself
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.page.viewport_size["width"]
        self.page.close()


@pytest.mark.parametrize(("n", "megabytes"), [(10, 6), (100, 6), (1000, 8)])
def test_page_opens_at_every_size(browser, tmp_path, n, megabytes):
    make = named if n == 10 else lambda seed: examples.random_sparse_chain(n, 4, rng=seed)
    file = explore(stand_in(make(0), make(1)), tmp_path / "page.html")
    assert file.stat().st_size < megabytes * 1e6
    with Opened(browser, file) as opened:
        page = opened.page
        assert len(page.evaluate("[...document.querySelectorAll('main .plot .main-svg')]")) >= 6
        page.hover("#graph-x")  # into view
        k, *spot = page.evaluate(DISK, "graph-x")
        page.mouse.move(*spot)
        until(page, "k => focus.x === k && focus.y === null", k)
        until(page, f"({SHAPES})('graph-y') > 0")  # its partners in the other graph
        assert page.evaluate(SHAPES, "heat-x") == 1
        assert page.is_visible("#tip")
        assert page.evaluate("X.members[focus.x][0]") in page.inner_text("#chosen")
        page.mouse.move(5, 5)
        until(page, f"({SHAPES})('graph-y') === 0")
        if n > MAX_GROUPS:
            assert "1,000 states are shown as 160 groups" in page.inner_text("#note-x")


def test_page_by_keyboard(browser, tmp_path):
    file = explore(stand_in(named(0), named(1)), tmp_path / "page.html", names=("before", "after"))
    with Opened(browser, file, scheme="dark") as opened:
        page = opened.page
        assert page.title() == "before and after: how they differ"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
        page.focus("#pairs")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        assert page.evaluate("kept") == {"x": 1, "y": 0}
        until(page, f"({SHAPES})('pairs') === 2")
        assert page.input_value("#find-x") == page.evaluate("X.members[1][0]")
        page.keyboard.press("Escape")
        assert page.evaluate("kept") == {"x": None, "y": None}
        page.fill("#find-y", "state 4")
        page.keyboard.press("Enter")
        assert page.evaluate("Y.members[kept.y][0]") == "state 4"
        page.click("#theme")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.select_option("#table-of", "encoder")
        assert page.evaluate("document.getElementById('pairs').data[0].zmax") <= 0  # shares, logarithmic
        page.click("#numbers summary")
        page.click("#table button >> nth=0")
        assert page.evaluate("[kept.x, kept.y]") == page.evaluate("[view.pairs[0].i, view.pairs[0].j]")
        assert "</script><b>" in page.inner_text("#table")  # a name is text, whatever it looks like


def test_slider_goes_over_the_sizes_on_a_narrow_screen(browser, tmp_path):
    X = examples.random_chain(30, 0)
    sweep = SimpleNamespace(results=[stand_in(X, examples.random_chain(k, k)) for k in (2, 3, 5)], recommended=3)
    file = explore(sweep, tmp_path / "page.html", names=("large", "small"))
    with Opened(browser, file, width=360) as opened:
        page = opened.page
        assert page.inner_text("#size") == "3"
        page.focus("#slider")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#size") == "5"
        assert "5 states" in page.inner_text("#title")
        assert f"Distance {sweep.results[2].value:.4g}" in page.inner_text("#answer")
        assert page.evaluate("document.getElementById('graph-y').data.at(-1).x.length") == 5
        assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
