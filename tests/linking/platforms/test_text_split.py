"""Long answers in parts: every part fits, code blocks stay whole, and nothing is lost or pinged (L19)."""

from __future__ import annotations

import regex
from hypothesis import given
from hypothesis import strategies as st

from linking.platforms.base import RenderedText
from linking.platforms.discord.adapter import DiscordAdapter
from linking.platforms.scripted import ScriptedAdapter
from linking.platforms.slack.adapter import SlackAdapter
from linking.platforms.telegram.adapter import TelegramAdapter, measure_text
from linking.platforms.text_split import (
    IncrementalSplitter,
    TextPart,
    count_utf16_units,
    find_last_cut,
    split_text,
)

discord = DiscordAdapter(app_id="1", public_key="", token="", api_url="")
slack = SlackAdapter(app_id="A1", signing_secret="", token="", api_url="")
telegram = TelegramAdapter(token="1:x", secret="", api_url="")
ALL = (discord, slack, telegram, ScriptedAdapter(secret="s"))
WRITING = st.text(st.sampled_from("abc é.\n`~*_<>&@#|[]()!👍🏽👨‍👩‍👧🇩🇪 \t-1"), max_size=400) | st.lists(
    st.sampled_from(
        [
            "```py\n",
            "```\n",
            "~~~\n",
            "# Title\n\n",
            "A sentence. ",
            "word ",
            "\n\n",
            "x" * 50,
            "- item\n",
            "<b>",
        ]
    ),
    max_size=40,
).map("".join)


def parts_of(adapter, text: str) -> list[TextPart]:
    return split_text(
        text, measure=lambda one: adapter.measure_text(adapter.render_text(one)), limit=adapter.chunk_target
    )


def test_a_long_code_block_is_cut_into_whole_ones():
    """A-L19.1: 9,000 characters with one block of 5,000 on a platform of 2,000"""
    code = "".join(f"line {number:04d} = compute({number})\n" for number in range(250))[:5000]
    text = "Intro. " * 285 + "\n\n```python\n" + code + "\n```\n\n" + "After it. " * 190
    text += "x" * (9000 - len(text))
    assert (len(text), len(code)) == (9000, 5000)
    parts = parts_of(discord, text)
    assert "".join(part.text for part in parts) == text
    for part in parts:
        assert len(part.full_text) <= 2000
        assert sum(line.startswith("```") for line in part.full_text.split("\n")) % 2 == 0
    assert {part.head for part in parts} == {"", "```python\n"}


def test_emoji_are_counted_as_telegram_counts_and_never_cut():
    """A-L19.3: 4,096 code points that are 8,192 units"""
    parts = parts_of(telegram, "😀" * 4096)
    assert [len(part.text) for part in parts] == [1950, 1950, 196]
    assert all(measure_text(telegram.render_text(part.full_text)) <= 4096 for part in parts)


def test_a_models_text_pings_nobody():
    """A-L19.4: everyone, here, a channel, a member, a role, on every platform"""
    text = "@everyone @here <!channel> <!here> <@123> <@&456> `@everyone` ```\n@everyone\n```"
    for adapter in ALL:
        body = adapter.render_text(text)
        for shown in (body.markup, body.plain) if adapter is not telegram else (body.markup,):
            for call in ("<!channel>", "<!here>", "<@123>", "<@&456>"):
                assert call not in shown, (adapter.platform, shown)
        if adapter is not telegram:  # to which these words are words
            assert "@everyone" not in body.markup
            assert "@here" not in body.markup


@given(WRITING, st.integers(20, 120))
def test_parts_are_the_text_and_each_fits(text: str, limit: int):
    """A-L19.1: whatever was written, and measured after escaping"""
    for adapter in ALL:

        def measure(one: str, adapter=adapter) -> int:
            return adapter.measure_text(adapter.render_text(one))

        parts = split_text(text, measure=measure, limit=limit)
        assert "".join(part.text for part in parts) == text
        for part in parts:
            assert measure(part.full_text) <= limit or len(part.text) == 1


@given(WRITING, st.integers(1, 60))
def test_parts_that_are_full_stay_as_they_are_while_the_answer_grows(text: str, more: int):
    """A-L19.5: and another process that splits the same text gets the same parts"""
    whole = split_text(text, measure=len, limit=60)
    grown = split_text(text + "y" * more, measure=len, limit=60)
    assert grown[: len(whole) - 1] == whole[:-1]


@given(WRITING, st.integers(1, 30), st.integers(8, 60))
def test_a_text_that_is_split_while_it_grows_is_split_as_if_at_once(text: str, step: int, limit: int):
    """L19: two roads to the same parts; also after it was taken back"""
    growing = IncrementalSplitter(measure=len, limit=limit)
    growing.split("something else that was taken back " * 4)
    for end in range(0, len(text) + step, step):
        assert growing.split(text[:end]) == split_text(text[:end], measure=len, limit=limit)


def test_of_a_growing_text_only_the_last_part_is_measured_again():
    """L19: a long answer costs no more at its end than at its beginning"""
    asked: list[int] = []

    def measure(text: str) -> int:
        asked.append(len(text))
        return len(text)

    growing = IncrementalSplitter(measure=measure, limit=100)
    text = "word " * 400
    growing.split(text)
    asked.clear()
    growing.split(text + "word ")
    assert 0 < sum(asked) < 1_500


@given(st.text(st.sampled_from("a👍🏽👨‍👩‍👧🇩🇪🇫e\u0301\u200d각\r\n"), max_size=30))
def test_a_cut_is_never_inside_what_people_see_as_one_character(text: str):
    """A-L19.3"""
    borders = {0, len(text)} | {found.end() for found in regex.finditer(r"\X", text)}
    for end in range(len(text) + 1):
        assert find_last_cut(text, end) in borders


def test_markdown_becomes_what_each_platform_reads():
    text = "# Plan\n\n**Bold** and *soft*, `a<b`, [docs](https://x.test/?a=1&b=2)\n\n- one\n- two\n\n> quoted\n\n```py\nif a < b: pass\n```"
    assert telegram.render_text(text).markup == (
        "<b>Plan</b>\n\n<b>Bold</b> and <i>soft</i>, <code>a&lt;b</code>, "
        '<a href="https://x.test/?a=1&amp;b=2">docs</a>\n\n• one\n• two\n\n<blockquote>quoted</blockquote>\n\n'
        '<pre><code class="language-py">if a &lt; b: pass</code></pre>'
    )
    assert slack.render_text(text).markup == (
        "*Plan*\n\n*Bold* and _soft_, `a&lt;b`, <https://x.test/?a=1&amp;b=2|docs>\n\n• one\n• two\n\n> quoted\n\n"
        "```\nif a &lt; b: pass\n```"
    )
    assert discord.render_text(text).markup == text


def test_a_link_to_a_script_is_only_its_label():
    assert telegram.render_text("[x](javascript:alert(1))").markup.count("<a") == 0
    assert slack.render_text("[click](<https://a.test/|!channel>)").markup.count("|") <= 1


def test_lengths_are_in_the_platforms_units():
    assert (count_utf16_units("aé😀"), measure_text(RenderedText(markup="<b>a&lt;</b>", plain="**a<**"))) == (
        4,
        6,
    )
