"""Formulas in live and stored answers and on shared pages, in a real browser (W2.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Site, Visitor
from tests.support.formula_examples import FORMULAS

pytestmark = pytest.mark.browser

TEXT = r"""Inline $e^{i\pi} = -1$ and \(\frac{a}{b}\).

$$
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} \boxed{x} \color{red} y
$$

Not one: \(\nosuchcommand{\), $5 and $6.
"""
SHOWN = """async (text) => {
  const { StreamingMarkdown } = await import("/static/js/lib/markdown.js");
  const box = document.createElement("div");
  const growing = new StreamingMarkdown(box);
  for (let i = 1; i <= text.length; i += 1) growing.update(text.slice(0, i), i === text.length);
  return [...box.querySelectorAll(".formula")].map((one) => one.dataset.tex ?? one.textContent);
}"""


@pytest.fixture(scope="module")
def blank(browser: Browser, site: Site) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(site.url)
    yield page
    page.close()


@pytest.mark.parametrize(("text", "wanted"), FORMULAS.values(), ids=FORMULAS)
def test_the_browser_finds_the_formulas_that_the_server_finds(
    blank: Page, text: str, wanted: list[str]
) -> None:
    """W2.1: letter by letter"""
    assert blank.evaluate(SHOWN, text) == wanted


def chat(email: str, text: str) -> str:
    from django.contrib.auth.models import User

    from tests.support import factories

    session = factories.session(User.objects.get(email=email), title="Sums")
    factories.message(session, content="Show me.")
    factories.message(session, "assistant", content=text)
    return str(session.pk)


def test_a_stored_formula_is_mathml_and_a_broken_one_stays_tex(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.1: within the content policy, whose refusals would fail this test"""
    session = stored(lambda: chat(ada.email, TEXT))
    ada.log_in()
    page = ada.tab(f"/chat/{session}/")
    prose = page.locator(".row.answer .prose")
    expect(prose.locator("math")).to_have_count(3)
    expect(prose.locator("mfrac")).to_have_count(1)
    expect(prose.locator("mtable mtd")).to_have_count(4)
    expect(prose.locator(".formula.unread")).to_have_text(r"\nosuchcommand{")
    expect(prose).to_contain_text("$5 and $6.")
    assert (
        prose.locator(".display math")
        .evaluate("(math) => getComputedStyle(math).fontFamily")
        .startswith("Formulas")
    )


def test_the_renderer_comes_with_the_first_formula_only(
    ada: Visitor, stored: Callable[[Callable[[], str]], str]
) -> None:
    """W2.1, W4.3"""
    plain, sums = stored(lambda: chat(ada.email, "No formula.")), stored(lambda: chat(ada.email, "$x$"))
    ada.log_in()
    asked: list[str] = []
    ada.context.on("request", lambda request: asked.append(request.url))
    page = ada.tab(f"/chat/{plain}/")
    page.wait_for_load_state("networkidle")
    assert not [url for url in asked if "temml" in url or "formulas.css" in url]
    page = ada.tab(f"/chat/{sums}/")
    expect(page.locator("math")).to_be_visible()
    assert [url for url in asked if "temml.min" in url]
