"""Stored Markdown becomes safe HTML (W2.1)."""

from __future__ import annotations

import pytest

from copilot import markdown


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
    assert "<li>☑ done</li>" in html
    assert "<li>☐ <strong>open</strong></li>" in html
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


def test_a_code_block_names_its_language_and_is_coloured_by_class() -> None:
    """No style attribute: the content security policy allows none."""
    html = markdown.render('```python\ndef f(): return "<b>"\n```')
    assert "<span>python</span>" in html
    assert 'class="py-k"' in html
    assert "&lt;b&gt;" in html
    assert "style=" not in html


def test_an_unknown_or_hostile_language_is_plain_code() -> None:
    html = markdown.render('```"><script>\nx < y\n```')
    assert "x &lt; y" in html
    assert "<script" not in html


def test_tables_are_aligned_by_class_and_may_scroll() -> None:
    html = markdown.render("| a | b |\n|--|--:|\n| 1 | 2 |")
    assert '<div class="table"' in html
    assert '<td class="right">2</td>' in html


def test_a_long_code_block_keeps_its_text_and_loses_its_colours() -> None:
    code = "x = 1\n" * 5000
    html = markdown.render(f"```python\n{code}```")
    assert html.count("x = 1") == 5000
    assert 'class="py-' not in html


def test_single_line_breaks_stay() -> None:
    assert markdown.render("one\ntwo").count("<br>") == 1
