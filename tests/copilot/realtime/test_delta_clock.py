"""The beat at which words are taken and told."""

from __future__ import annotations

import asyncio

import pytest

from copilot.providers.base import CatalogueEntry, ModelRequest, ProviderFailure, TextDelta, UserMessage
from copilot.providers.openai_chat import OpenAIChatProvider
from copilot.realtime import delta_clock
from copilot.realtime.delta_clock import BEAT_SECONDS, MIN_DELTA_INTERVAL_SECONDS, get_next_due_at, get_phase

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TURNS = ("3f0c8c6e-0000-4000-8000-000000000001", "3f0c8c6e-0000-4000-8000-00000000000a", "")


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("late", [-0.001, 0.0, 0.004, 0.009])
def test_who_is_on_the_beat_stays_on_it(turn, late):
    """T8.5: though a timer rang a little early, or the loop was busy"""
    beat = 1000 * BEAT_SECONDS + get_phase(turn)
    assert get_next_due_at(beat + late, get_phase(turn)) == pytest.approx(beat + BEAT_SECONDS)


def test_words_go_out_at_most_every_thirty_milliseconds():
    """T8.5: and nobody waits for two beats"""
    for turn in TURNS:
        for now in (40.0 + step / 1000 for step in range(100)):
            wait = get_next_due_at(now, get_phase(turn)) - now
            assert MIN_DELTA_INTERVAL_SECONDS <= wait < MIN_DELTA_INTERVAL_SECONDS + BEAT_SECONDS


async def test_those_who_are_due_together_share_a_timer():
    """P15: a hundred streams do not make a hundred timers"""
    rests, timers = delta_clock.get_beat_timer(), []
    for _ in range(30):  # those who come just behind a beat have timers of their own
        resting = [rests.next_beat(0.0) for _ in range(100)]
        resting[7].cancel()  # its turn was stopped
        timers.append(len(rests._waiting))
        await asyncio.wait(resting)
        assert not rests._waiting
    assert min(timers) <= 2  # a beat may have come between


def word(text: str) -> bytes:
    data = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_what_came_before_the_connection_broke_is_read():
    """T8.5, A5.2: words that waited for the beat are not lost with their connection"""
    heard = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + word("one "))
        await heard.wait()
        writer.write(word("two "))
        writer.close()  # without the last chunk

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        provider = OpenAIChatProvider(credential="", base_url=f"http://127.0.0.1:{port}/v1")
        request = ModelRequest(
            entry=CatalogueEntry(name="Local", provider="openai_chat", model="m"),
            system="",
            messages=(UserMessage(text="Hello"),),
        )
        items = provider.stream(request)
        assert await anext(items) == TextDelta("one ")
        heard.set()
        assert await anext(items) == TextDelta("two ")
        with pytest.raises(ProviderFailure):
            await anext(items)
        await provider.aclose()
