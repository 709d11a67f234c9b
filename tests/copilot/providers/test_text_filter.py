"""Visible text is clean however it is cut into chunks (A14.8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copilot import metrics
from copilot.providers.base import TextDelta
from copilot.providers.text_filter import TextFilter, TextPiece

CASES: list[tuple[str, str, str, int]] = [
    ("Hello", "Hello", "", 0),
    ("\n\n Hello\n", " Hello\n", "", 0),
    ("<think>\nhm</think>\n\nHello", "Hello", "hm", 0),
    ("<THINKING>hm</Thinking>Hello", "Hello", "hm", 0),
    ("<think></think>Hello", "Hello", "", 0),
    ("<think>\n\n</think>Hello", "Hello", "", 0),
    ("<think>never closed", "", "never closed", 0),
    ("left open</think>Hello", "left openHello", "", 0),
    ("a <reasoning>b</reasoning> c", "a  c", "b", 0),
    ("◁think▷b◁/think▷c", "c", "b", 0),
    ("[THINK]b[/THINK]c", "c", "b", 0),
    (
        "<|channel|>analysis<|message|>deep<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        "Hi",
        "deep",
        0,
    ),
    ("<|channel>thought\ndeep<channel|>Hi", "Hi", "deep", 0),
    ('x<tool_call>{"name": "a"}</tool_call>y', "xy", "", 1),
    ("<function_calls><invoke name='a'></invoke></function_calls>y", "y", "", 1),
    ("<｜DSML｜function_calls><｜DSML｜invoke name='a'/></｜DSML｜function_calls>y", "y", "", 1),
    ("<function=ls>{}</function> ok <invoke name='b'></invoke>", " ok ", "", 2),
    ("text <tool_call>{cut", "text ", "", 1),
    ("text <function_ca", "text ", "", 1),
    ("text <｜DSML｜func", "text ", "", 1),
    ("text <", "text <", "", 0),
    ("a < b, a<b and [link](x) ~ `c`", "a < b, a<b and [link](x) ~ `c`", "", 0),
    ("Use `<think>` and ``<tool_call>`` here", "Use `<think>` and ``<tool_call>`` here", "", 0),
    ("```xml\n<think>\n</think>\n```\n<think>x</think>y", "```xml\n<think>\n</think>\n```\ny", "x", 0),
    ("~~~\n<tool_call>\n~~~\n", "~~~\n<tool_call>\n~~~\n", "", 0),
    ("```\na ``` b\n<think>\n```\n", "```\na ``` b\n<think>\n```\n", "", 0),
    ("- ```\n  <think>\n\n  ```\n", "- ```\n  <think>\n\n  ```\n", "", 0),
    ("it`s\n\n<think>x</think>y", "it`s\n\ny", "x", 0),
]


def clean(chunks: list[str], *, continues: bool = False) -> tuple[str, str, int]:
    cleaner = TextFilter(continues=continues)
    pieces: list[TextPiece] = []
    for chunk in chunks:
        pieces += [TextDelta(chunk)] if cleaner.is_plain(chunk) else cleaner.feed(chunk)
    pieces += cleaner.finish()
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    thought = "".join(piece.text for piece in pieces if not isinstance(piece, TextDelta))
    return text, thought, cleaner.removed


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 1000])
@pytest.mark.parametrize(("raw", "text", "thought", "removed"), CASES)
def test_markers_are_found_across_any_chunk_border_a14_8(
    raw: str, text: str, thought: str, removed: int, size: int
) -> None:
    before = metrics.leaked_calls._value.get()
    assert clean(cut(raw, size)) == (text, thought, removed)
    assert metrics.leaked_calls._value.get() == before + removed


def test_no_fragment_of_a_split_tag_is_ever_visible_a14_c1() -> None:
    cleaner = TextFilter()
    assert cleaner.feed("<th") == []
    assert cleaner.feed("in") == []
    assert cleaner.feed("k>") == []


def test_a_continued_answer_keeps_its_leading_newlines() -> None:
    assert clean(["\n\nnext"], continues=True)[0] == "\n\nnext"


def test_nothing_is_held_back_from_ordinary_text() -> None:
    cleaner = TextFilter()
    assert cleaner.feed("So ") == [TextDelta("So ")]
    assert cleaner.is_plain("plain words, and numbers: 1 > 0. ")


ALPHABET = st.sampled_from(
    ["<", "think>", "</think>", "`", "```", "\n", "a", " ", "~~~", "<tool_call>", "</tool_call>", "İ", "["]
)


@given(st.lists(ALPHABET, max_size=25), st.integers(1, 7))
def test_chunking_never_changes_the_outcome_a14_8(words: list[str], size: int) -> None:
    raw = "".join(words)
    assert clean(cut(raw, size)) == clean([raw])


@given(st.text(alphabet=st.characters(exclude_characters="<[◁\r\n"), max_size=200), st.integers(1, 9))
def test_text_without_markers_passes_unchanged(raw: str, size: int) -> None:
    assert clean(cut(raw, size)) == (raw, "", 0)
