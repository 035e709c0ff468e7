"""``report.html`` in a browser: it needs nothing but itself, shows all its pictures, and fits a phone.

And the style sheet of the documentation, which gives narrow screens the text first.
"""

import re
import unicodedata
from pathlib import Path

import pytest

from experiments import run_all

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for _ in run_all(folder, ["blocks", "imitation_marginals"]):
        pass
    return folder / "report.html"


def test_page_needs_nothing_else(page_file):
    """No script, nothing fetched: every source is a data URI, every link a place on the page or a file beside it."""
    text = page_file.read_text(encoding="utf-8")
    assert "<script" not in text
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'src="([^"]*)"', text))
    for target in re.findall(r'href="([^"]*)"', text):
        if target.startswith("#"):
            assert f'id="{target[1:]}"' in text
        elif not target.startswith("data:"):
            assert (page_file.parent / target).exists()
    assert text.count("<img ") == 2 * (text.count("<h2 ") - 1) == 4  # small and large


def test_no_sign_needs_a_font_of_its_own(page_file):
    """Wide and pictographic characters are missing in many fonts, and in most of those without East Asian letters."""
    text = page_file.read_text(encoding="utf-8")
    assert {
        c for c in text if unicodedata.east_asian_width(c) in "WF" or unicodedata.category(c) in ("So", "Co")
    } == set()


@pytest.mark.parametrize("width", [360, 800, 1280, 1600])
def test_wide_tables_can_be_read_to_their_right_end(browser, page_file, width):
    page = browser.new_page(viewport={"width": width, "height": 740})
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ends = page.evaluate("""[...document.querySelectorAll('.frame')].map(frame => {
        frame.scrollLeft = 1e6;
        const cell = frame.querySelector('tr').lastElementChild;
        return cell.getBoundingClientRect().right - frame.getBoundingClientRect().right;
    })""")
    assert len(ends) == 3
    assert max(ends) <= 1
    page.close()


@pytest.mark.parametrize("width", [360, 1200])
def test_page_in_a_browser(browser, page_file, width):
    page = browser.new_page(viewport={"width": width, "height": 740})
    complaints, fetched = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(page_file.as_uri())
    assert page.title() == "diffbisim: the experiments"
    images = page.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth, i.alt])")
    assert len(images) == 4
    for complete, natural, shown, alt in images:
        assert complete
        assert natural > 500
        assert 200 <= shown <= width
        assert alt
    first = page.evaluate("document.querySelector('.tiles').getBoundingClientRect().top")
    assert first < 250  # the page opens with the pictures
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # no sideways scrolling of the page
    inside = page.evaluate("[...document.querySelectorAll('.frame')].map(f => f.getBoundingClientRect().right)")
    assert max(inside) <= width
    assert page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)") >= 16
    page.click(".tiles a >> nth=1")
    assert page.url.endswith("#imitation_marginals")
    page.click("#imitation_marginals ~ details summary")
    assert page.is_visible("#imitation_marginals ~ details pre")
    assert complaints == []
    assert [url for url in fetched if not url.startswith(("file:", "data:"))] == []
    page.close()


#: The contrast of each text with what is behind it, by the formula of the Web Content Accessibility Guidelines 2.1.
CONTRASTS = """() => {
    const numbers = color => color.match(/[\\d.]+/g).map(Number);
    const light = rgb => rgb.slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
    const behind = element => {
        if (!element) return [255, 255, 255];
        const [r, g, b, a = 1] = numbers(getComputedStyle(element).backgroundColor);
        const under = behind(element.parentElement);
        return [r, g, b].map((c, k) => a * c + (1 - a) * under[k]);
    };
    const found = {};
    for (const element of document.body.querySelectorAll('*')) {
        if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
        const [x, y] = [light(numbers(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
        const name = element.tagName + '.' + element.className;
        found[name] = Math.min(found[name] ?? 21, (x + 0.05) / (y + 0.05));
    }
    return [found, light(behind(document.body)), [...document.images].map(image => light(behind(image)))];
}"""


@pytest.mark.parametrize(("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("dark", "print")])
def test_text_is_legible_in_both_schemes_and_on_paper(browser, page_file, scheme, media):
    page = browser.new_page(viewport={"width": 800, "height": 740}, color_scheme=scheme)
    page.emulate_media(media=media)
    page.goto(page_file.as_uri())
    contrasts, ground, figures = page.evaluate(CONTRASTS)
    assert ground < 0.02 if (scheme, media) == ("dark", "screen") else ground == 1  # paper is white
    assert {"H1.", "A.", "TD.", "TH.number", "SPAN.small", "SPAN.verdict agrees", "SUMMARY.", "PRE."} <= set(contrasts)
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}  # level AA
    assert figures == [1] * 4  # drawn in dark colors: they are on white, whatever surrounds them
    page.close()


@pytest.mark.parametrize("width", [360, 800])
def test_claims_are_cards_where_columns_would_be_narrow(browser, page_file, width):
    page = browser.new_page(viewport={"width": width, "height": 740})
    page.goto(page_file.as_uri())
    cells = page.evaluate("[...document.querySelectorAll('.claims td')].map(cell => cell.clientWidth)")
    assert min(cells) > 0.8 * width
    page.close()


def test_everything_shown_is_escaped(tmp_path):
    from dataclasses import replace

    from experiments import blocks
    from experiments.page import write_page
    from experiments.report import finish

    done = finish(blocks, "blocks", blocks.Settings(n_blocks=2, block_size=1), tmp_path)
    odd = replace(done, title="<b>&", claim="a < b", findings=("<i>",), header=("<u>",), rows=(("<s>",),))
    write_page(tmp_path / "odd.html", {"blocks": odd})
    text = (tmp_path / "odd.html").read_text(encoding="utf-8")
    assert not re.search(r"<b>|<i>|<u>|<s>", text)
    assert "a &lt; b" in text


# --- the documentation ----------------------------------------------------------------------------------------------


def test_wide_tables_of_the_documentation_scroll_by_themselves(browser, tmp_path):
    style, cells = (DOCS / "_static" / "custom.css").as_uri(), "<td>unbreakable</td>" * 60
    text = (
        f'<!DOCTYPE html><link rel="stylesheet" href="{style}"><article><table class="table"><tr>{cells}</tr></table>'
    )
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


def test_every_page_of_the_documentation_is_in_a_group():
    """The navigation is written by hand, one line for each page."""
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    trees = [re.findall(r"```{toctree}\n(.*?)```", path.read_text("utf-8"), re.DOTALL) for path in DOCS.glob("*.md")]
    lines = [line for tree in trees for block in tree for line in block.splitlines() if line and line[0] != ":"]
    listed = [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
    assert pages <= set(listed)
    assert len(listed) == len(set(listed))
