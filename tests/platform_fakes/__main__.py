"""Talk to the agent as somebody on Telegram would, without Telegram: `python -m tests.platform_fakes`."""

from __future__ import annotations

import itertools
import threading
import time

from tests.platform_fakes import recorded
from tests.platform_fakes.telegram import Sent, Telegram

PORT = 8081
HELLO = """A stand-in for Telegram listens on {url}. Start Pilothouse with

  TELEGRAM_BOT_TOKEN={token} TELEGRAM_SECRET=anything TELEGRAM_API_URL={url}

and, with the same variables, `manage.py run_bot telegram`. Then write here; a number presses that button.
"""


def main() -> None:
    fake = Telegram()
    threading.Thread(target=fake.run, args=(PORT,), daemon=True).start()
    while not fake.url:
        time.sleep(0.01)
    print(HELLO.format(url=fake.url, token=fake.token))
    threading.Thread(target=_watch, args=(fake,), daemon=True).start()
    numbers = itertools.count(int(time.time()))
    while True:
        try:
            text = input()
        except (EOFError, KeyboardInterrupt):
            return
        number = next(numbers)
        buttons = [button for one in fake.shown(str(recorded.ADA)) for button in one.buttons]
        if text.isdecimal() and 0 < int(text) <= len(buttons):
            code = buttons[int(text) - 1].get("callback_data", "")
            fake.say(recorded.telegram_press(code, update_id=number, press_id=str(number)))
        elif text:
            fake.say(recorded.telegram_message(text=text, update_id=number, message_id=number % 10**6))


def _watch(fake: Telegram) -> None:
    """Every message as it is now, whenever it has changed."""
    seen: dict[int, str] = {}
    while True:
        for one in fake.shown(str(recorded.ADA)):
            shown = _shown(fake, one)
            if seen.get(one.id) != shown:
                seen[one.id] = shown
                print(f"\n{shown}")
        time.sleep(0.1)


def _shown(fake: Telegram, one: Sent) -> str:
    buttons = [button for message in fake.shown(str(recorded.ADA)) for button in message.buttons]
    labels = [
        f"[{buttons.index(button) + 1}: {button['text']}] {button.get('url', '')}" for button in one.buttons
    ]
    return "\n".join([one.text, *labels])


if __name__ == "__main__":
    main()
