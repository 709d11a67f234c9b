"""The OpenAI-compatible endpoints, called by OpenAI's own client over a real socket (E4.2)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import openai
import pytest

from billing.errors import LimitReached
from billing.usage import limit_checks
from config.core.db import run_in_thread
from copilot.accounts import api_keys, purge
from copilot.chat import selectors as chat_selectors
from copilot.chat import sessions, stop
from copilot.models import Message, Session, Turn
from copilot.openai_compat import base as openai_compat_base
from copilot.openai_compat.requests import TurnRequest
from copilot.openai_compat.turns import TurnOrder, _cleanup_tasks, run_turn
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText
from tests.support import factories
from tests.support.rest_clients import eventually
from tests.support.turn_engine import Errand, add_tools, cue, start, status, until

HELLO = [{"role": "user", "content": "Hello"}]


def listed(user):
    return [item.id for item in chat_selectors.list_sessions_page(user.pk).items]


def gone(session):
    session.refresh_from_db()
    return session.deleted_at is not None


def test_models_are_tiers_and_what_serves_them(client):
    """E4.2"""
    names = [model.id for model in client.models.list()]
    assert names == ["standard", "advanced", "small", "demo"]
    assert client.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert refused.value.code == "model_not_found"


def test_a_completion_is_answered_in_a_session_that_nobody_sees(ada, client, model):
    """E4.2"""
    model.will(ScriptedText("Aye, Ada."))
    answer = client.chat.completions.create(
        model="small",
        messages=[
            {"role": "system", "content": "Speak like a sailor."},
            {"role": "user", "content": "I am Ada."},
            {"role": "assistant", "content": "Welcome aboard."},
            {"role": "user", "content": [{"type": "text", "text": "Who am I?"}]},
        ],
        temperature=0.2,
    )
    assert answer.choices[0].message.content == "Aye, Ada."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    [session] = Session.objects.all()
    assert gone(session)
    assert (Turn.objects.latest("created_at").tier, session.instructions) == ("small", "")
    heard = [message for message in model.requests[0].messages if message.role in ("user", "assistant")]
    assert [message.role for message in heard] == ["user", "assistant", "user"]
    assert "Speak like a sailor." in repr(model.requests[0])


def test_a_streamed_completion_comes_as_it_is_written_and_says_what_the_whole_one_says(ada, client, model):
    """E4.2"""
    for _ in range(2):
        model.will(ScriptedText("Looking."), ScriptedCall("current_time"))
        model.will(ScriptedText("It "), cue(1), ScriptedText("is noon."))
    chunks = iter(
        client.chat.completions.create(
            model="standard", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    text = ""
    while not text.endswith("It "):
        text += next(chunks).choices[0].delta.content or ""
    assert listed(ada) == []
    model.give(1)
    *rest, last, figures = chunks
    text += "".join(chunk.choices[0].delta.content or "" for chunk in rest)
    assert (text, last.choices[0].finish_reason) == ("Looking.\n\nIt is noon.", "stop")
    assert (figures.choices, figures.usage.completion_tokens > 0) == ([], True)
    whole = client.chat.completions.create(model="standard", messages=HELLO)
    assert whole.choices[0].message.content == text
    until(lambda: all(gone(session) for session in Session.objects.all()))


def test_a_caller_who_hangs_up_stops_what_nobody_else_could_read(ada, client, model):
    """E4.2"""
    model.will(ScriptedText("Once upon"), cue(1), ScriptedText(" a time."))
    stream = client.chat.completions.create(model="standard", messages=HELLO, stream=True)
    next(iter(stream))
    model.reaches(1)
    stream.close()
    turn = Turn.objects.get()
    until(lambda: status(turn.pk) == "cancelled")
    assert gone(turn.session)


async def test_a_caller_who_hangs_up_at_any_moment_leaves_nothing_behind(ada, rig):
    """E4.2: while it begins, while it runs, while it is tidied up"""
    caller = openai_compat_base.ApiCaller(ada.pk, frozenset({"read", "chat"}))
    order = TurnOrder(request=TurnRequest(text="Hello"), tier="", mode="", prefix="chatcmpl-")

    async def call():
        async with run_turn(caller, order):
            pass

    for moments in range(12):
        task = asyncio.create_task(call())
        for _ in range(moments):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await eventually(lambda: not _cleanup_tasks)
    assert await run_in_thread(lambda: Session.objects.filter(deleted_at=None).count()) == 0


def test_a_session_that_a_dead_process_left_is_purged_with_the_trash(ada):
    """E4.2"""
    left, fresh = (sessions.create_unlisted_session(ada.pk) for _ in range(2))
    Session.objects.filter(pk=left).update(active_at=datetime.now(UTC) - timedelta(days=31))
    while purge.purge_trashed_sessions():
        pass
    assert [session.pk for session in Session.objects.all()] == [fresh]


def test_a_caller_who_hangs_up_on_a_conversation_leaves_it_to_go_on(ada, client, model):
    """E4.2"""
    session = factories.session(ada)
    model.will(ScriptedText("Once upon"), cue(1), ScriptedText(" a time."))
    stream = client.chat.completions.create(
        model="standard", messages=HELLO, stream=True, extra_body={"conversation": str(session.pk)}
    )
    next(iter(stream))
    model.reaches(1)
    stream.close()
    model.give(1)
    until(lambda: status(Turn.objects.get().pk) == "succeeded")
    assert listed(ada) == [str(session.pk)]


def test_refusals_have_the_form_and_the_status_that_the_client_knows(ada, base_url, client, monkeypatch):
    """E4.2"""

    def refused(error, **fields):
        with pytest.raises(error) as caught:
            client.chat.completions.create(**{"model": "standard", "messages": HELLO, **fields})
        return caught.value.code

    assert refused(openai.BadRequestError, messages=[]) == "invalid_request"
    assert refused(openai.BadRequestError, messages=[{"role": "assistant", "content": "?"}])
    assert refused(
        openai.BadRequestError, messages=[{"role": "tool", "tool_call_id": "x", "content": "1"}, *HELLO]
    )
    assert refused(openai.BadRequestError, n=2)
    assert refused(openai.BadRequestError, tools=[{"type": "custom"}]) == "unsupported_parameter"
    assert refused(openai.BadRequestError, response_format={"type": "xml"}) == "unsupported_parameter"
    assert refused(openai.NotFoundError, extra_body={"conversation": "conv_0"}) == "not_found"
    assert listed(ada) == []
    stranger = client.with_options(api_key="ph_user_nobody")
    with pytest.raises(openai.AuthenticationError) as unknown:
        stranger.models.list()
    assert unknown.value.code == "invalid_api_key"
    reader = client.with_options(api_key=api_keys.create_api_key(ada, scopes=("read",)).token)
    assert len(list(reader.models.list())) == 4
    with pytest.raises(openai.PermissionDeniedError):
        reader.chat.completions.create(model="standard", messages=HELLO)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="standard", input="x")


def test_limits_are_429_and_say_when_to_come_back(ada, client, model, monkeypatch):
    """E4.2"""
    once = client.with_options(max_retries=0)

    def spent(user_id, hold):
        raise LimitReached(window="weekly", resets_at=datetime.now(UTC) + timedelta(minutes=5))

    with monkeypatch.context() as patch:
        patch.setattr(limit_checks, "check_limits_and_hold", spent)
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as reached:
                once.chat.completions.create(model="standard", messages=HELLO, stream=stream)
            assert 290 <= int(reached.value.response.headers["retry-after"]) <= 301
    assert all(gone(session) for session in Session.objects.all())
    monkeypatch.setattr(openai_compat_base, "CALLS_PER_MINUTE", 0)
    with pytest.raises(openai.RateLimitError) as hurried:
        once.models.list()
    assert (hurried.value.code, "retry-after" in hurried.value.response.headers) == (
        "too_many_requests",
        True,
    )


def test_a_failed_turn_is_reported_once_and_not_retried(ada, client, model):
    """E4.2"""
    model.always(ScriptedFailure("bad_request"))
    with pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(model="standard", messages=HELLO)
    assert failed.value.code == "bad_request"
    assert Turn.objects.count() == 1
    with pytest.raises(openai.APIError) as broken:
        list(client.chat.completions.create(model="standard", messages=HELLO, stream=True))
    assert broken.value.code == "bad_request"
    failed_response = client.responses.create(model="standard", input="Hello")
    assert (failed_response.status, failed_response.error.code) == ("failed", "bad_request")


def test_a_pause_for_approval_is_reported_with_a_link_and_the_session_is_shown(
    ada, client, model, monkeypatch
):
    """E4.2, A31.4: these endpoints cannot deliver later"""
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    model.will(ScriptedText("I will pay."), ScriptedCall("pay"))
    answer = client.chat.completions.create(model="standard", messages=HELLO)
    [session] = listed(ada)
    text = answer.choices[0].message.content
    assert text.startswith("I will pay.\n\nWaiting for your approval")
    assert text.endswith(f"/chat/{session}/")
    assert "ask_user" not in {tool.name for tool in model.requests[0].tools}


def test_a_response_is_kept_and_continued(ada, client, model):
    """E4.2"""
    first = client.responses.create(model="standard", input="I am Ada.", instructions="Be brief.")
    assert (first.status, first.output_text, first.error) == ("completed", "Aye.", None)
    assert first.usage.total_tokens > 0
    second = client.responses.create(model="standard", input="Who am I?", previous_response_id=first.id)
    assert second.conversation.id == first.conversation.id
    assert "I am Ada." in model.said_to(-1)
    third = client.responses.create(
        model="standard", input=[{"role": "user", "content": "And now?"}], conversation=first.conversation.id
    )
    assert client.responses.retrieve(third.id).output_text == "Aye."
    assert len(listed(ada)) == 1
    for previous in (first.id, "resp_0", third.id[:-1]):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="standard", input="Hm", previous_response_id=previous)
        assert refused.value.code.startswith("previous_response_")
    client.responses.create(model="standard", input="Forget this.", store=False)
    assert len(listed(ada)) == 1


def test_another_users_responses_and_conversations_do_not_exist(client, ada, base_url):
    """E4.2"""
    mine = client.responses.create(model="standard", input="Hello")
    bob = client.with_options(api_key=api_keys.create_api_key(factories.bob()).token)
    with pytest.raises(openai.NotFoundError):
        bob.responses.retrieve(mine.id)
    with pytest.raises(openai.BadRequestError):
        bob.responses.create(model="standard", input="Hello", previous_response_id=mine.id)
    with pytest.raises(openai.NotFoundError):
        bob.responses.create(model="standard", input="Hello", conversation=mine.conversation.id)


def test_a_streamed_response_is_put_together_by_the_client(ada, client, model):
    """E4.2"""
    model.will(ScriptedText("Looking."), ScriptedCall("current_time"))
    model.will(ScriptedText("It is noon.", size=3))
    with client.responses.stream(model="standard", input="What time is it?") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (final.status, final.output_text) == ("completed", "Looking.\n\nIt is noon.")
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert client.responses.retrieve(final.id).output_text == final.output_text
    again = client.responses.create(
        model="standard", input="Thanks", previous_response_id=final.id, stream=True
    )
    numbers = [event.sequence_number for event in again]
    assert numbers == list(range(len(numbers)))


def test_a_stream_on_a_busy_conversation_follows_its_own_message(ada, client, model):
    """E4.2, T10"""
    session = factories.session(ada)
    model.will(ScriptedText("For another."), cue(1), ScriptedText(" Still."))
    start(session, "First")
    model.reaches(1)
    model.will(ScriptedText("For this one."))
    stream = iter(
        client.responses.create(
            model="standard", input="Second", conversation=f"conv_{session.pk.hex}", stream=True
        )
    )
    assert next(stream).type == "response.created"
    model.give(1)
    assert list(stream)[-1].response.output_text == "For this one."
    assert Message.objects.filter(session=session, kind="user").count() == 2


def test_sessions_whose_answers_end_together_are_deleted_with_what_their_tools_left_running(ada):
    answered = [sessions.create_unlisted_session(ada.pk) for _ in range(2)]
    listed_session = factories.session(ada)
    child = Session.objects.create(owner=ada, parent_id=answered[0], depth=2)
    running = factories.turn(child, "running")
    stop.delete_answered_sessions([(ada.pk, session_id) for session_id in answered])
    assert list(Session.objects.filter(deleted_at=None)) == [listed_session]
    running.refresh_from_db()
    assert running.stop_requested_at is not None
