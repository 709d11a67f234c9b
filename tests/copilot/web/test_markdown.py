"""Stored Markdown becomes safe HTML (W2.1)."""

from __future__ import annotations

import time

import pytest

from copilot import metrics
from copilot.web import markdown


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '<a href="javascript:alert(1)">x</a>',
        "<style>body{}</style>",
        "<iframe src='//x'></iframe>",
    ],
)
def test_raw_html_is_shown_as_text(text: str) -> None:
    html = markdown.render(text)
    assert "&lt;" in html
    for tag in ("<script", "<img", "<style", "<iframe", "<a href"):
        assert tag not in html


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "data:text/html,x", "vbscript:x", " JaVaScRiPt:x"]
)
def test_a_link_with_an_active_scheme_goes_nowhere(address: str) -> None:
    assert "href" not in markdown.render(f"[x]({address})")
    assert "href" not in markdown.render(f"[x]: <{address}>\n\n[x]")


def test_links_open_safely() -> None:
    html = markdown.render("[docs](https://example.com/a?b=1&c=2)")
    assert 'href="https://example.com/a?b=1&amp;c=2"' in html
    assert 'target="_blank"' in html
    assert "noopener" in html


@pytest.mark.parametrize("address", ["https://example.com", "//example.com/x", "mailto:a@example.com"])
def test_a_link_out_of_the_site_leaves_the_chat_open(address: str) -> None:
    """W2.1: an address without its scheme leads away too"""
    assert 'target="_blank"' in markdown.render(f"[x]({address})")
    assert 'target="_blank"' not in markdown.render("[x](/files/)")


def test_a_task_is_shown_by_a_sign_as_the_browser_shows_it() -> None:
    """W2.1: a reload changes nothing; words in brackets elsewhere are words"""
    html = markdown.render("- [x] done\n- [ ] **open**\n- [y] other\n\n[x] alone")
    assert '<li><span class="task done">☑</span> done</li>' in html
    assert '<li><span class="task">☐</span> <strong>open</strong></li>' in html
    assert "<li>[y] other</li>" in html
    assert ">[x] alone</p>" in html


def test_each_block_reads_from_its_own_side() -> None:
    """W2.1: an Arabic answer runs from the right, lists and tables included; what is inside follows its block"""
    html = markdown.render("# سلام\n\n- مرحبا\n\n> مرحبا\n\n| a |\n|--|\n| b |\n\nHello")
    for tag in ("h1", "ul", "blockquote", 'div class="table" tabindex="0"'):
        assert f'<{tag} dir="auto">' in html
    assert html.count("dir=") == 5


def test_a_bare_address_becomes_a_link_without_the_full_stop_after_it() -> None:
    html = markdown.render("See https://example.com/x. Then `https://not.a/link`.")
    assert ">https://example.com/x</a>." in html
    assert html.count("<a ") == 1


def test_images_are_links_because_pages_ask_no_third_party() -> None:
    """W4.3."""
    html = markdown.render("![a chart](https://example.com/chart.png)")
    assert "<img" not in html
    assert ">a chart</a>" in html


def test_a_code_block_names_its_language_and_is_coloured_in_the_browser_alone() -> None:
    """No style attribute: the content security policy allows none."""
    html = markdown.render('```python\ndef f(): return "<b>"\n```')
    assert "<span>python</span>" in html
    assert '<code>def f(): return "&lt;b&gt;"\n</code>' in html
    assert "style=" not in html


def test_an_unknown_or_hostile_language_is_plain_code() -> None:
    html = markdown.render('```"><script>\nx < y\n```')
    assert "x &lt; y" in html
    assert "<script" not in html


def test_tables_are_aligned_by_class_and_may_scroll() -> None:
    html = markdown.render("| a | b |\n|--|--:|\n| 1 | 2 |")
    assert '<div class="table"' in html
    assert '<td class="right">2</td>' in html


@pytest.mark.attack
@pytest.mark.parametrize(
    "sentence",
    [
        "Open https://[your-domain]/setup",
        "[here](https://[your-domain]/setup)",
        "![x](http://[::bad/)",
        "<http://[x>",
        "http://a:99999999/",
        "http://\u2100.example/",
    ],
)
def test_a_sentence_with_a_broken_address_is_still_shown(sentence: str) -> None:
    html = markdown.render(sentence)
    assert "as-written" not in html
    assert html.startswith("<p")


@pytest.mark.attack
def test_a_text_that_breaks_the_renderer_is_shown_as_written_and_reported(monkeypatch, caplog) -> None:
    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("the secret text")

    monkeypatch.setattr(markdown.nh3, "clean", broken)
    before = count_unrendered("failed")
    html = markdown.render("Hello *<b>*\nthere")
    logs = [record.msg for record in caplog.records]
    assert html == '<div class="as-written" dir="auto">Hello *&lt;b&gt;*\nthere</div>'
    assert count_unrendered("failed") == before + 1
    assert [line["event"] for line in logs] == ["markdown_failed"]
    assert "secret" not in str(logs)


@pytest.mark.attack
def test_a_text_beyond_the_limit_is_shown_as_written() -> None:
    text = "*a* " * (markdown.MAX_CHARACTERS // 4)
    assert "<em>" in markdown.render(text)
    assert markdown.render(text + "<") == f'<div class="as-written" dir="auto">{text}&lt;</div>'
    assert markdown.extract_code_block("```\nx\n```\n" + text, 0) is None


@pytest.mark.attack
def test_texts_after_a_costly_page_are_shown_as_written() -> None:
    budget = markdown.PageBudget(seconds=1e-9)
    assert "<em>" in markdown.render("*a*", budget=budget)
    assert "<em>" not in markdown.render("*a*", budget=budget)


def count_unrendered(reason: str) -> float:
    return metrics.unrendered_texts.labels(reason=reason)._value.get()


def test_single_line_breaks_stay() -> None:
    assert markdown.render("one\ntwo").count("<br>") == 1


GITHUB_ATTACKS = {
    "tags that never close": "<sub>",
    "details that never close": "<details>\n",
    "closed details": "<details>\n</details>\n",
    "summaries": "<details><summary>",
    "footnotes": "[^1]: a\n",
    "openings of footnotes": "[^",
    "callouts": "> [!NOTE]\n\n",
}


@pytest.mark.parametrize("piece", GITHUB_ATTACKS.values(), ids=GITHUB_ATTACKS)
def test_hostile_github_markdown_costs_no_more_than_its_length(piece: str) -> None:
    """W2.1: twice the text takes about twice the time"""

    def seconds(characters: int) -> float:
        text = piece * (characters // len(piece))
        tries = []
        for _ in range(3):
            started = time.thread_time()
            markdown.render(text)
            tries.append(time.thread_time() - started)
        return min(tries)

    assert seconds(80_000) < 6 * seconds(20_000) + 0.1


def test_only_tags_without_attributes_and_with_a_counterpart_are_tags() -> None:
    """W2.1: everything else is shown as written"""
    html = markdown.render('x<sub>2</sub> <kbd onclick="a()">b</kbd> <sup>c <details ontoggle=d> </i>')
    assert "x<sub>2</sub>" in html
    assert "<kbd" not in html
    assert "<sup" not in html
    assert "<details" not in html
    assert "&lt;/i&gt;" in html


def test_details_hold_markdown_and_stay_within_their_list() -> None:
    html = markdown.render("- a\n  <details><summary>**b**</summary>\n\n  - c\n  </details>\n- d")
    assert "<summary><strong>b</strong></summary>" in html
    assert html.index("</details>") < html.index("<li>d")
