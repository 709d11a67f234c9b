"""Files that go with messages, and pictures in results: what the model sees, now and in later turns (A29, A9.9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from copilot.chat import approval_decisions, stop
from copilot.chat.commands import DecideApproval
from copilot.files import services as files
from copilot.models import Approval, Message, Session, Turn
from copilot.providers import catalogue
from copilot.providers.base import ImagePart, ModelRequest, ToolResultsMessage, UserMessage
from copilot.providers.request_validation import find_request_problems
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.realtime import events
from copilot.tools.base import Tool, ToolInvocation, ToolOutput
from diagnostics import reaper
from tests.support import factories
from tests.support.turn_engine import (
    Model,
    NoArguments,
    Rig,
    add_tools,
    cue,
    ended,
    queue,
    quiet,
    say,
    start,
    told,
    until,
)

MB = 2**20
PNG = b"\x89PNG\r\n\x1a\n"
SMALL = PNG + b"a small one"


@pytest.fixture(name="session")
def session_fixture(rig: Rig) -> Session:
    return factories.session(factories.ada())


@pytest.fixture(autouse=True)
def _own_catalogue(rig: Rig) -> Iterator[None]:
    before = catalogue.get_catalogue()
    yield
    catalogue.set_catalogue(before)


def offer(**changes: object) -> None:
    entry = replace(catalogue.DEMO_ENTRY, **changes)  # type: ignore[arg-type]
    catalogue.set_catalogue(catalogue.Catalogue(entries=(entry,), tiers={"standard": (entry,)}))


def kept(session: Session, name: str = "cat.png", content: bytes = SMALL) -> str:
    return str(files.store_file(session.owner_id, name=name, content=content, source="upload").id)


def sent(model: Model, number: int = -1) -> ModelRequest:
    """A request that the strictest vendor accepts."""
    request = model.requests[number]
    assert find_request_problems(request) == []
    return request


def pictures(request: ModelRequest) -> list[ImagePart]:
    said = [image for m in request.messages if isinstance(m, UserMessage) for image in m.images]
    groups = [m for m in request.messages if isinstance(m, ToolResultsMessage)]
    return said + [image for group in groups for result in group.results for image in result.images]


# --- what goes with a message (A29) ------------------------------------------------------------------

TABLE = {
    "a PNG that calls itself a JPEG": ("cat.jpg", SMALL, "image/png"),
    "a WebP with both its marks": ("cat.webp", b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
    "20 MiB": ("big.png", PNG + b"x" * (20 * MB - len(PNG)), "image/png"),
    "20 MiB and a byte": ("big.png", PNG + b"x" * (20 * MB + 1 - len(PNG)), ""),
    "HTML that calls itself a PNG": ("page.png", b"<html><body>hi", ""),
    "sound that calls itself WebP": ("sound.webp", b"RIFF\x10\0\0\0WAVEfmt ", ""),
    "SVG": ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", ""),
    "BMP": ("cat.bmp", b"BM\x10\0\0\0\0\0", ""),
    "nothing at all": ("empty.png", b"", ""),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_is_no_picture_by_its_bytes_is_a_file(name: str, session: Session, model: Model) -> None:
    """A29.c1, A29.2, A29.4"""
    called, content, mime = TABLE[name]
    file_id = kept(session, called, content)
    ended(start(session, "What is this?", attachments=(file_id,)))
    (message,) = sent(model).messages
    assert isinstance(message, UserMessage)
    assert [image.mime for image in message.images] == ([mime] if mime else [])
    listed = "<attached_files>" in message.text
    assert (listed, file_id in message.text) == (not mime, not mime)
    assert message.text.endswith("What is this?")


def test_a_foreign_file_is_ignored_and_reported(session: Session, model: Model) -> None:
    """A29.1, A29.c1"""
    foreign = kept(factories.session(factories.bob()))
    mine = kept(session)
    outcome = say(session, "See.", attachments=(foreign, mine, "nonsense"))
    assert outcome.ignored_attachments == [foreign, "nonsense"]
    ended(outcome.turn_id)
    assert [image.file_id for image in pictures(sent(model))] == [mine]


def test_a_picture_is_sent_again_in_every_later_turn(session: Session, model: Model) -> None:
    """A16.5, A15.9"""
    ended(start(session, "What is this?", attachments=(kept(session),)))
    ended(start(session, "And what colour?"))
    first, second = sent(model, 0), sent(model, 1)
    assert second.messages[: len(first.messages)] == first.messages
    assert [image.data for image in pictures(second)] == [SMALL]


def test_a_model_without_vision_gets_name_type_and_size(session: Session, model: Model) -> None:
    """A29.3, A29.c1: image, then a text model"""
    file_id = kept(session)
    ended(start(session, "What is this?", attachments=(file_id,)))
    offer(supports_images=False)
    ended(start(session, "And now?"))
    assert pictures(sent(model, 0)) != []
    assert pictures(sent(model, 1)) == []
    assert "[image not shown: cat.png, image/png, 0.0 KB]" in model.said_to()


@pytest.mark.parametrize(("mode", "shown"), [("auto", 0), ("native", 1), ("text", 0)])
def test_the_installation_may_overrule_the_catalogue(
    session: Session, model: Model, settings: object, mode: str, shown: int
) -> None:
    """A29.3"""
    settings.IMAGE_MODE = mode  # type: ignore[attr-defined]
    offer(supports_images=False)
    ended(start(session, "What is this?", attachments=(kept(session),)))
    assert len(pictures(sent(model))) == shown


def test_a_picture_that_was_deleted_is_not_sent(session: Session, model: Model) -> None:
    file_id = kept(session)
    ended(start(session, "What is this?", attachments=(file_id,)))
    file = files.find_file(session.owner_id, file_id)
    files.trash_file(session.owner_id, file.id)
    ended(start(session, "And now?"))
    assert pictures(sent(model)) == []
    assert "[image not shown: cat.png" in model.said_to()


def test_a_picture_in_a_follow_up_is_seen_at_the_boundary_and_ever_after(
    session: Session, model: Model
) -> None:
    """A13.5, A16.5"""
    model.will(ScriptedText("I look."), ScriptedCall("current_time", {}), cue(1))
    turn = start(session, "Begin.")
    model.reaches(1)
    queue(session, "And this?", attachments=(kept(session),))
    model.give(1)
    ended(turn)
    ended(start(session, "Well?"))
    boundary, later = sent(model, 1), sent(model, 2)
    assert [image.data for image in pictures(boundary)] == [SMALL]
    assert later.messages[: len(boundary.messages)] == boundary.messages


def test_a_picture_that_waited_until_the_turns_end_is_seen_by_the_same_turn(
    session: Session, model: Model
) -> None:
    """T6.3, A16.5"""
    model.will(ScriptedText("Done"), cue(1))
    turn = start(session, "Begin.")
    model.reaches(1)
    queue(session, "And this?", attachments=(kept(session),))
    model.give(1)
    ended(turn)
    assert [image.data for image in pictures(sent(model))] == [SMALL]


# --- pictures in results (A9.9, A22.4) ---------------------------------------------------------------


def read(session: Session, model: Model) -> str:
    """A turn in which the model reads a picture."""
    file_id = kept(session)
    model.will(ScriptedCall("read_file", {"file": file_id}), ScriptedCall("current_time", {}))
    ended(start(session, "Look at it."))
    quiet(session)
    return file_id


def test_a_picture_that_was_read_follows_its_group_in_later_turns_too(session: Session, model: Model) -> None:
    """A9.c3, A22.4, A16.5"""
    file_id = read(session, model)
    ended(start(session, "And now?"))
    live, later = sent(model, 1), sent(model, 2)
    _, _, group, after = live.messages
    assert isinstance(group, ToolResultsMessage)
    assert "see attachment" in group.results[0].content
    assert isinstance(after, UserMessage)
    assert [image.data for image in after.images] == [SMALL]
    assert later.messages[: len(live.messages)] == live.messages
    row = Message.objects.get(session=session, kind="tool_result", data__tool="read_file")
    assert [one["file_id"] for one in row.attachments] == [file_id]


def test_a_model_that_takes_pictures_in_results_gets_them_there(session: Session, model: Model) -> None:
    """A9.9"""
    offer(media_in_tool_results=True)
    read(session, model)
    ended(start(session, "And now?"))
    for request in (sent(model, 1), sent(model, 2)):
        _, _, group, *_ = request.messages
        assert isinstance(group, ToolResultsMessage)
        assert [image.data for image in group.results[0].images] == [SMALL]
        assert "see attachment" not in group.results[0].content


def test_a_model_without_sight_reads_what_it_cannot_see(session: Session, model: Model) -> None:
    """A9.9, A22.4"""
    offer(supports_images=False)
    read(session, model)
    assert pictures(sent(model)) == []
    assert "[image not shown: cat.png, image/png, 0.0 KB]" in model.said_to()


class Painter:
    """A tool whose picture is not stored as a file yet."""

    def __init__(self) -> None:
        self.tool = Tool(name="paint", description="Paints.", arguments=NoArguments, run=self._run)

    async def _run(self, arguments: NoArguments, invocation: ToolInvocation) -> ToolOutput:
        return ToolOutput(value="painted", media=(ImagePart(mime="image/png", data=SMALL, name="sea.png"),))


def test_what_a_tool_painted_is_kept_and_survives_a_lost_worker(
    rig: Rig, session: Session, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A9.9, A3.9"""
    add_tools(monkeypatch, Painter())  # type: ignore[arg-type]
    model.will(ScriptedCall("paint", {}))
    model.will(ScriptedText("It sh"), cue(1))
    turn = start(session, "Paint.")
    model.reaches(1)
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    ended(turn)
    before, after = sent(model, 1), sent(model, 2)
    assert [image.data for image in pictures(after)] == [SMALL]
    assert after.messages[: len(before.messages)] == before.messages
    (finished,) = told(session.pk, "tool.finished")
    assert isinstance(finished, events.ToolFinished)
    (shown,) = finished.message.attachments
    assert (shown.name, shown.type, shown.size) == ("sea.png", "image/png", len(SMALL))
    assert (
        files.get_file_page(session.owner_id).items == []
    )  # outside lists and quota, like other outputs of tools


def test_a_file_is_deleted_only_once_its_owner_agrees(session: Session, model: Model) -> None:
    """A22.1, A32, A11.3"""
    file_id = kept(session, "old.txt", b"x")
    model.will(ScriptedCall("delete_file", {"file": file_id}))
    turn = start(session, "Clean up.")
    until(lambda: Approval.objects.filter(turn=turn, state="requested").exists())
    until(lambda: Turn.objects.get(pk=turn).status == Turn.Status.WAITING)
    assert files.get_file_page(session.owner_id).items != []
    asked = Approval.objects.get(turn=turn)
    approval_decisions.decide_approvals(
        session.owner_id, [DecideApproval(approval_id=asked.pk, decision="approve")]
    )
    assert ended(turn).status == Turn.Status.SUCCEEDED
    assert files.get_file_page(session.owner_id).items == []


def test_a_stop_keeps_the_picture_of_a_finished_call(session: Session, model: Model) -> None:
    """A9.4"""
    file_id = kept(session)
    model.will(ScriptedCall("read_file", {"file": file_id}))
    model.will(ScriptedText("It is"), cue(1))
    turn = start(session, "Look at it.")
    model.reaches(1)
    stop.stop_session(session.owner_id, session.pk)
    ended(turn)
    quiet(session)
    ended(start(session, "Well?"))
    assert [image.file_id for image in pictures(sent(model))] == [file_id]
