"""Commands typed as a message, and what a message's answer says became of it (A30.2, A30.7)."""

from __future__ import annotations

import pytest

from config.core.errors import InvalidRequest, NotFound
from copilot.chat import side_questions, slash_commands
from copilot.chat.slash_commands import ParsedSlashCommand, parse_slash_command
from copilot.models import Message, Session, Turn
from copilot.providers.scripted import ScriptedText
from copilot.realtime import lease
from tests.support import factories
from tests.support.rest_clients import JSON, V1, program
from tests.support.turn_engine import command, cue, ended, quiet, start, transcript, until, waiting


@pytest.fixture
def session(rig):
    return factories.session()


def hear(session, text, **fields):
    return slash_commands.submit_input(command(session, text, **fields))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/undo", ParsedSlashCommand("undo", "")),
        ("  /rename  Two boats\n", ParsedSlashCommand("rename", "Two boats")),
        ("/new\nfirst line\nsecond", ParsedSlashCommand("new", "first line\nsecond")),
        ("/shrug well", ParsedSlashCommand("shrug", "well")),
        ("/etc/hosts is what?", None),
        ("and /undo", None),
        ("/", None),
        ("//undo", None),
        ("/Undo", None),
    ],
)
def test_a_command_is_a_slash_and_a_word_in_front(text, found):
    assert parse_slash_command(text) == found


def test_every_command_of_the_menu_is_obeyed():
    """W2.8"""
    assert {one.name for one in slash_commands.SLASH_COMMANDS} == set(slash_commands.COMMAND_HANDLERS)


def test_undo_rename_and_stop_are_acts_and_leave_no_message(session, model):
    """A30.2"""
    ended(start(session, "One"))
    quiet(session)
    assert hear(session, "/rename Two boats").message == "Renamed to Two boats."
    session.refresh_from_db()
    assert (session.title, session.title_origin) == ("Two boats", "manual")
    assert hear(session, "/stop").message == "Nothing is running."
    undone = hear(session, "/undo")
    assert (undone.command, undone.text) == ("undo", "One")
    assert transcript(session) == []
    assert Message.objects.filter(session=session, kind="user").count() == 1
    with pytest.raises(InvalidRequest):
        hear(session, "/rename")


def test_stop_stops(session, model):
    """A30.2, T7"""
    model.will(ScriptedText("Well"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    assert hear(session, "/stop").turn_id == turn_id
    assert ended(turn_id).status == "cancelled"


def test_new_begins_another_chat_with_what_was_said(session, model):
    """W2.8"""
    begun = hear(session, "/new Hello there")
    ended(begun.turn_id)
    assert begun.session_id != session.pk
    assert transcript(Session.objects.get(pk=begun.session_id)) == ["Hello there", "Aye."]
    assert transcript(session) == []
    assert hear(session, "/new").turn_id is None


def test_a_goal_is_set_shown_paused_and_cleared(session, model):
    """A30.2, A30.4"""
    model.always(ScriptedText('{"achieved": true, "reason": "Done.", "next": ""}'))
    assert hear(session, "/goal").message == "There is no goal."
    begun = hear(session, "/goal Count the boats")
    assert begun.message == "The goal is active: Count the boats"
    ended(begun.turn_id)
    assert transcript(session)[0] == "Count the boats"
    assert hear(session, "/goal clear").message == "There is no goal."
    session.refresh_from_db()
    assert session.goal == ""


def test_a_side_question_leaves_the_transcript_alone(session, model):
    """A30.2, A30.3"""
    asked = hear(session, "/btw What is a yawl?")
    assert asked.side_id is not None
    until(lambda: aside_state(session, asked) == "answered")
    assert transcript(session) == []


def aside_state(session, asked):
    return side_questions.get_side_question(session.owner_id, session.pk, asked.side_id).state


@pytest.mark.parametrize("text", ["/shrug", "/undo that thing please"])
def test_what_is_no_command_is_sent_as_text_with_a_hint(session, model, text):
    """A30.2: unknown ones are sent as text; words behind a command that takes none make it a sentence"""
    outcome = hear(session, text)
    assert "sent as a message" in outcome.hint
    ended(outcome.turn_id)
    assert transcript(session) == [text, "Aye."]


def test_a_message_that_was_promised_a_turn_is_never_a_command(session, model):
    """T3.6: a run_id sees exactly one ending"""
    outcome = hear(session, "/stop", run_id="r")
    assert outcome.hint == ""
    assert ended(outcome.turn_id).run_ids == ["r"]


def test_commands_on_what_is_not_yours_are_404(session):
    """T3.8"""
    for text in ("/undo", "/stop", "/rename Mine", "/new"):
        with pytest.raises(NotFound):
            hear(session, text, user_id=factories.bob().pk)
    assert Session.objects.count() == 1


def test_commands_over_rest(session, model):
    """A30.2, E3"""
    client, path = program(factories.ada()), f"{V1}/sessions/{session.pk}/messages"
    renamed = client.post(path, {"text": "/rename Two boats"}, content_type=JSON)
    assert (renamed.status_code, renamed.json()["state"], renamed.json()["command"]) == (
        200,
        "obeyed",
        "rename",
    )
    unknown = client.post(path, {"text": "/shrug"}, content_type=JSON)
    assert (unknown.status_code, "/shrug" in unknown.json()["hint"]) == (201, True)
    ended(Turn.objects.get(session=session).pk)


# --- A30.7 -------------------------------------------------------------------------------------------


def test_the_answer_says_started_or_queued(session, model):
    """A30.7"""
    model.will(ScriptedText("Well"), cue(1))
    assert hear(session, "One").state == "started"
    model.reaches(1)
    assert hear(session, "Two").state == "queued"
    model.give(1)
    until(lambda: not waiting(session))
    quiet(session)


def test_the_answer_says_delivered_when_the_running_turn_has_it_already(session, model, monkeypatch):
    """A30.7: the queue was full when its request came to it, but the turn had taken it from the rows"""
    model.will(ScriptedText("Well"), cue(1))
    turn_id = start(session, "One")
    model.reaches(1)

    def late(*args, **fields):
        Message.objects.filter(session=session, sequence=None).update(turn=turn_id, sequence=1_000)
        return lease.QueueFull(turn_id=str(turn_id))

    monkeypatch.setattr(lease, "claim_or_queue", late)
    outcome = hear(session, "Two")
    assert (outcome.state, outcome.turn_id) == ("delivered", turn_id)
    monkeypatch.undo()
    model.give(1)
    ended(turn_id)
