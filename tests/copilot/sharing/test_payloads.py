"""What a share makes public, and which files it names (S8, S10)."""

from __future__ import annotations

import msgspec
import pytest

from copilot.sharing import payloads
from copilot.sharing.payloads import (
    CallWithResult,
    IncludedParts,
    Said,
    SharePayload,
    Step,
    Thought,
    TranscriptRow,
)

FIRST = "11111111-1111-4111-8111-111111111111"
SECOND = "22222222-2222-4222-8222-22222222abcd"
NOON = "2026-11-16T12:00:00.000Z"


def row(kind: str, text: str = "", **fields: object) -> TranscriptRow:
    return TranscriptRow(kind=kind, text=text, created_at=NOON, **fields)


def published(*rows: TranscriptRow, title: str = "", **included: bool) -> SharePayload:
    return payloads.build_payload(rows, title=title, included=IncludedParts(**included))


CALLED = row(
    "tool_call",
    call=CallWithResult(
        tool="web_fetch",
        outcome="done",
        arguments={"url": "https://canary-argument.example"},
        output="canary-output with sk-abcdefghijklmnopqrstuvwx1234",
    ),
)


def test_a_step_shows_its_tool_and_outcome_and_thoughts_stay_private() -> None:
    """S8: absent, not hidden."""
    payload = published(row("user", "Hi"), row("reasoning", "canary-thought"), CALLED, row("assistant", "Ho"))
    assert [type(entry) for entry in payload.messages] == [Said, Step, Said]
    assert b"canary" not in msgspec.json.encode(payload)


def test_what_is_asked_for_is_shown_with_secrets_masked_and_cut() -> None:
    """S8"""
    long = row("tool_call", call=CallWithResult(tool="bash_exec", outcome="failed", output="x" * 30_000))
    thought, step, cut = published(
        row("reasoning", "canary-thought"), CALLED, long, reasoning=True, tools=True
    ).messages
    assert isinstance(thought, Thought)
    assert thought.text == "canary-thought"
    assert "canary-argument" in step.arguments
    assert "canary-output" in step.output
    assert "sk-abc" not in step.output
    assert (len(cut.output), cut.outcome) == (20_000, "failed")


def test_server_blocks_go_with_what_is_in_them() -> None:
    """S8: server-injected context, also where a model repeated it."""
    text = "Before <user_context>\ncanary İ\n</User_Context> after <memory_context> it"
    [said] = published(row("assistant", text)).messages
    assert said.text == "Before  after  it"


def test_blocks_without_an_end_are_looked_for_once() -> None:
    """S8: looking for each one's end would take minutes"""
    assert published(row("assistant", "<user_context>" * 200_000)).messages == []


def test_other_people_are_numbered_and_their_names_gone() -> None:
    """S8"""
    payload = published(
        row("user", "Grace Hopper asks", member="Ken"),
        row("assistant", "Ken and Grace Hopper, not Kenya"),
        row("user", "yes", member="Grace Hopper"),
        row("user", "mine"),
        title="Talk with Ken",
    )
    assert [entry.author for entry in payload.messages] == ["Member 1", "", "Member 2", ""]
    assert payload.messages[1].text == "Member 1 and Member 2, not Kenya"
    assert payload.title == "Talk with Member 1"


def test_every_way_of_naming_a_file_is_found_once() -> None:
    """A-S10.1"""
    ways = [
        f"[report](workspace://{FIRST})",
        f"see workspace://{FIRST}.",
        {"result": '{"uri": "workspace://' + FIRST + '"}'},
        [[f"workspace://{SECOND.upper()}/name.png?x=1"]],
        f"![x](workspace://{FIRST}#image/png)",
        {f"workspace://{SECOND}": 1},
    ]
    assert payloads.find_file_ids(ways) == [FIRST, SECOND]
    for way in ways:
        assert len(payloads.find_file_ids(way)) == 1
    payload = published(
        row("user", "look", attachments=(SECOND,)), row("assistant", f"workspace://{FIRST}#image/png")
    )
    assert payloads.find_file_ids(payload) == [SECOND, FIRST]


@pytest.mark.parametrize(
    "text",
    [f"workspace://{FIRST}0", f"workspace:/{FIRST}", FIRST, f"workspace://{FIRST[:-1]}", "workspace://x"],
)
def test_what_only_looks_like_a_file_is_none(text: str) -> None:
    """A-S10.1: a longer hex run is not a match."""
    assert payloads.find_file_ids(text) == []


def test_deep_and_wide_values_are_looked_at_up_to_a_bound() -> None:
    """A-S10.3"""
    deep: list[object] = [f"workspace://{FIRST}"]
    for _ in range(100_000):
        deep = [deep]
    wide = [f"workspace://{number:08x}-0000-4000-8000-000000000000" for number in range(1_500)]
    assert payloads.find_file_ids(deep) == [FIRST]
    assert len(payloads.find_file_ids(wide)) == payloads.MAX_SHARED_FILES
    assert payloads.find_file_ids([*[0] * payloads.MAX_VISITED_NODES, f"workspace://{FIRST}"]) == []


def test_a_file_named_only_in_what_is_not_published_is_not_named() -> None:
    """A-S10.4"""
    hidden = row(
        "tool_call", call=CallWithResult(tool="read_file", outcome="done", output=f"workspace://{FIRST}")
    )
    assert payloads.find_file_ids(published(hidden)) == []
    assert payloads.find_file_ids(published(hidden, tools=True)) == [FIRST]


def test_only_the_owners_own_words_and_attachments_vouch_for_a_file() -> None:
    """A-S10.5"""
    third, fourth = FIRST.replace("1", "3"), FIRST.replace("1", "4")
    rows = [
        row("user", f"workspace://{FIRST}", attachments=(SECOND,)),
        row("assistant", f"workspace://{third}"),
        row("user", f"workspace://{fourth}", member="Ken"),
        row("user", f"workspace://{fourth}", spoken=False),
    ]
    assert payloads.find_own_file_ids(published(*rows), rows) == {FIRST, SECOND}
