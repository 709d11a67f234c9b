"""Where formulas begin and end in stored Markdown (W2.1)."""

from __future__ import annotations

import html
import re

import pytest

from copilot.web import markdown
from tests.support.formula_examples import FORMULAS


def found(rendered: str) -> list[str]:
    shown = re.findall(r'<(?:div|span) class="formula[^>]*>(.*?)</(?:div|span)>', rendered, re.S)
    return [html.unescape(one) for one in shown]


@pytest.mark.parametrize(("text", "wanted"), FORMULAS.values(), ids=FORMULAS)
def test_a_formula_is_what_its_signs_enclose(text: str, wanted: list[str]) -> None:
    """W2.1"""
    assert found(markdown.render(text)) == wanted


def test_a_formula_is_shown_as_text() -> None:
    """W2.1"""
    assert "<img" not in markdown.render("$<img src=x onerror=alert(1)>$")


@pytest.mark.parametrize("sign", ["$", "$$", r"\(", r"\[", "$$\n", "\\[\n", "$a ", "\\[\\\\"])
def test_signs_that_nothing_closes_cost_no_more_than_their_number(sign: str) -> None:
    """W2.1: the longest message of them is rendered within the time limit of a test; a square of it would not be"""
    assert markdown.render(sign * (64_000 // len(sign)))
