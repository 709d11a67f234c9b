"""HTML as text (A24.2)."""

from __future__ import annotations

import time

import pytest

from copilot.tools.web.html_text import MAX_SOURCE_CHARACTERS, MAX_TEXT_CHARACTERS, extract_text

PAGE = """<!doctype html><html><head><title>A &amp; B
 </title><style>p { color: red }</style><script>if (a < b) alert("</p>")</script></head>
<body><!-- hidden --><h1>Head</h1><p>One   <b>two</b>
three &lt;4&gt;.</p><ul><li>first</li><li><a href="/x?y=1&amp;z=2">the link</a></li></ul>
<a href="javascript:alert(1)">bad</a> <img alt="a cat" src=x><noscript>turn it on</noscript>
<pre>  a
    b</pre><table><tr><td>l</td><td>r</td></tr></table></body></html>"""


def test_a_page_becomes_title_text_and_links() -> None:
    """A24.2"""
    page = extract_text(PAGE, base_url="https://a.example/dir/", style="text")
    assert page.title == "A & B"
    assert page.text.startswith("Head\n\nOne two three <4>.")
    assert "- first\n- the link (https://a.example/x?y=1&z=2)" in page.text
    assert "\nbad [image: a cat]" in page.text
    assert "  a\n    b" in page.text
    for gone in ("alert", "color", "hidden", "turn it on"):
        assert gone not in page.text


def test_markdown_keeps_headings_links_and_code() -> None:
    """A24.2"""
    page = extract_text(PAGE, base_url="https://a.example/", style="markdown")
    assert page.text.startswith("# Head")
    assert "[the link](https://a.example/x?y=1&z=2)" in page.text
    assert "```\n  a\n    b\n```" in page.text


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "<",
            "<a ",
            "<!--",
            "<!",
            "<div>",
            "<a href=x>",
            "</",
            '<a "',
            "<a '",
            "<svg>",
            "<script>",
            "<pre>",
        ),
        *("<title>", "&", "<img alt=", '<a href="[">', "<li>", "<a href ", "<noscript></noscript"),
    ],
)
def test_no_page_takes_longer_than_its_size(unit: str) -> None:
    """A24.1: the parser runs in the worker, so a hostile page must not hold it"""
    source = unit * (500_000 // len(unit))
    started = time.process_time()
    extract_text(source, base_url="https://a.example/", style="markdown")
    assert time.process_time() - started < 5  # a fraction of a second in practice; quadratic would be minutes


@pytest.mark.parametrize("unit", ["<a href=x>y", "<a href=x></a>"])
def test_links_to_a_long_address_make_no_more_than_can_be_shown(unit: str) -> None:
    """A24.1: each word of a page can stand for the whole of its address"""
    base = "https://a.example/" + "x/" * 8_000
    started = time.process_time()
    page = extract_text(unit * (MAX_SOURCE_CHARACTERS // len(unit)), base_url=base, style="text")
    assert time.process_time() - started < 5  # a fraction of a second; joined one by one they take minutes
    assert len(page.text) < 2 * MAX_TEXT_CHARACTERS


def test_a_page_that_is_not_read_to_its_end_says_so() -> None:
    """A24.2"""
    script = f"<script>{'x' * MAX_SOURCE_CHARACTERS}</script>"
    assert extract_text(f"seen {script} unseen", base_url="", style="text").cut
    assert extract_text("word " * (MAX_TEXT_CHARACTERS // 4), base_url="", style="text").cut
    assert not extract_text(PAGE, base_url="", style="text").cut


@pytest.mark.parametrize(
    "reference", ["&#" + "9" * 5_000 + ";", "&#x" + "f" * 5_000, "&#" + "0" * 5_000 + "65;"]
)
def test_a_character_of_thousands_of_digits_spoils_no_page(reference: str) -> None:
    """A24.2"""
    page = extract_text(f"<p>before {reference} <a href='/{reference}'>after</a>", base_url="", style="text")
    assert page.text.startswith("before")
    assert "after" in page.text


@pytest.mark.parametrize("source", ["", "plain", "<p", "<title>never closed", "<p>a<p>b", "\x00<b>", "<a>"])
def test_broken_pages_are_read_as_far_as_they_go(source: str) -> None:
    extract_text(source, base_url="", style="text")
