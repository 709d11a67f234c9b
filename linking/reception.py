"""What a stored update means: words for the agent, a command, a press, news of a place; and what is said to it (L18).

Every act is a function of `inbound`, which the bot REST calls too; here results are put into words.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import assert_never

from django.db import IntegrityError, transaction

from copilot import turns
from copilot.commands import as_uuid
from copilot.context import Channel
from copilot.errors import Conflict, NotFound, OutcomeUnknown, Refused, Unavailable
from linking import attaching, caps, conversations, inbound, links, mails, outbound, pace, platforms, wording
from linking.attaching import Attached
from linking.conversations import Bot, Where
from linking.errors import MessageRefused, NotLinked, NotServerAdmin
from linking.inbound import Accepted, Asked, Decided, IncomingMessage
from linking.inbound.commands import LinkOffered, Result, Status
from linking.models import LinkToken
from linking.outbound import Note
from linking.platforms.base import Address, Button, Incoming, Moved, Opened, Place, Pressed, Removed, Said

log = logging.getLogger(__name__)

LATER = (Unavailable, OutcomeUnknown)  # nothing is wrong with the update
QUEUED_NOTE_SECONDS = 30


def handle(platform: str, bot_account: str, incoming: Incoming) -> str:
    """How it went, in one word; raises what only time can mend."""
    bot = Bot(platform=platform, bot_account=bot_account)
    match incoming.what:
        case Said() as said:
            return _Talk(bot, incoming, outbound.recognised(platform, said)).hear()
        case Pressed() as pressed:
            return _press(bot, incoming.place, pressed)
        case Removed():
            return _leave(bot, incoming.place)
        case Moved() as moved:
            return _move(bot, incoming.place, moved.new_id)
        case Opened():
            conversations.open_place(bot, incoming.place.container_id)
            return "opened"
        case unreachable:
            assert_never(unreachable)


class _Talk:
    """Somebody says something in a place."""

    def __init__(self, bot: Bot, incoming: Incoming, said: Said) -> None:
        self.bot = bot
        self.key = incoming.update_key
        self.place = incoming.place
        self.said = said
        self.where = Where(
            platform=bot.platform,
            bot_account=bot.bot_account,
            scope=self.place.scope,
            container_id=self.place.container_id,
            thread_id=self.place.thread_id,
            server_id=self.place.server_id,
        )
        self.to = address(self.place, anchor=said.message_id, reply_token=said.reply_token)
        self._spoke = False

    def hear(self) -> str:
        """An answer that the platform was promised is given, if only in a word."""
        outcome = self._heard()
        if self.said.reply_token and not self._spoke and outcome not in ("started", "queued"):
            self.whisper(wording.IN_A_WORD.get(outcome, wording.NOTED))
        return outcome

    def _heard(self) -> str:
        command = inbound.command_of(self.said.text) if self.said.mentioned else None
        if command is not None:
            return self._obey(command)
        if self.place.scope == "server" and self.said.text.startswith("/"):
            return "ignored"  # somebody else's command
        if self.said.mentioned and self.said.files:
            outbound.show_typing(self.bot.platform, self.to)  # fetching them may take a while
        try:
            return self._say()
        except NotLinked:
            return self._prompt()
        except (*LATER, Conflict):
            raise
        except Refused as refused:
            return self._refuse(refused)

    def _say(self) -> str:
        attached = attaching.attached(self.where, self.said)
        if attached.left_out and self.said.mentioned:
            self.tell(wording.left_out(attached.left_out))
            if not self.said.text.strip() and not attached.ids:
                return "refused"
        message = self._message(attached)
        if self.said.reply_token:
            outbound.keep_reply_token(self.bot.platform, message.run_id, self.said.reply_token)
        return self._accepted(inbound.hear(message))

    def _message(self, attached: Attached) -> IncomingMessage:
        able = platforms.adapter_class(self.bot.platform).supports_async_delivery
        return IncomingMessage(
            key=self.key,
            where=self.where,
            user_id=self.said.speaker.user_id,
            text=self.said.text,
            attachments=attached.ids,
            sources=attached.sources,
            channel=Channel(async_delivery=able, interactive=True),
            display_name=self.said.speaker.name,
            role_ids=self.said.speaker.role_ids,
            reply_to=self.said.message_id,
            reply_thread=self.place.reply_thread,
            mentioned=self.said.mentioned,
        )

    def _accepted(self, heard: Accepted | inbound.Answered) -> str:
        if not isinstance(heard, Accepted):
            return "answered"
        if heard.state == "queued" and not heard.replayed:
            if self._may_tell_of_line():
                self._tell_of_line(wording.queued(heard.position))
            return "queued"
        if (turn_id := as_uuid(heard.turn_id)) is not None:
            outbound.courier().take(turn_id)
        return "started"

    def _tell_of_line(self, text: str) -> None:
        """Nobody waits for it, but where the answer will take its place."""
        if self.said.reply_token:
            self.tell(text)
        else:
            outbound.mention(self.bot.platform, self.to, text)

    def _may_tell_of_line(self) -> bool:
        """A crowd is told once in a while: platforms let a bot say little in a group (L20)."""
        if self.place.scope == "dm":
            return True
        place = f"{self.bot.platform}:{self.place.container_id}:{self.place.thread_id}"
        return pace.first("queued", place, seconds=QUEUED_NOTE_SECONDS)

    # --- those who are not linked, or not admitted ---

    def _prompt(self) -> str:
        """A greeting with a private link, not too often; in a server only to who called us."""
        if not self.said.mentioned or not self._may_greet():
            return "unlinked"
        if self.place.scope == "server":
            self.hint(wording.SERVER_UNLINKED)
            return "unlinked"
        try:
            self._show("link", inbound.obey("link", self._asked()))
        except LATER:
            raise
        except Refused as refused:
            self.tell(refused.message)
        return "unlinked"

    def _may_greet(self) -> bool:
        platform, account = self.bot.platform, self.bot.bot_account
        who = self.said.speaker.user_id
        if self.place.scope == "dm":
            return caps.may_greet(platform, account, who)
        server = self.place.server_id
        return caps.may_greet(platform, account, f"{server}:{who}") and caps.may_prompt_server(
            platform, server
        )

    def _refuse(self, refused: Refused) -> str:
        """In a server once an hour for each reason: a channel is not flooded by what it may not do (L8)."""
        if self.said.reply_token:  # for who asked alone: the channel sees nothing of it
            self.whisper(refused.message)
            return "refused"
        often = self.place.scope == "dm" and not isinstance(refused, MessageRefused)
        bot, place = self.bot, self.place
        if often or caps.may_tell(refused, bot.platform, bot.bot_account, place.container_id):
            self.tell(refused.message)
        return "refused"

    # --- commands ---

    def _obey(self, command: str) -> str:
        try:
            self._show(command, inbound.obey(command, self._asked(command)))
        except LATER:
            raise
        except NotLinked:
            return self._prompt()
        except Refused as refused:
            self._deny(refused)
        return "unlinked" if command == "help" and self._greeted() else "command"

    def _greeted(self) -> bool:
        """Who asks for help in a chat of their own may be a stranger, and gets a link besides (L9)."""
        if self.place.scope == "server":
            return False
        try:
            conversations.payer_of(self.where, self.said.speaker.user_id)
        except NotLinked:
            self._prompt()
            return True
        return False

    def _deny(self, refused: Refused) -> None:
        """To who asked; where that cannot be, the channel is told as of every refusal (L8)."""
        text = wording.ADMINS_ONLY if isinstance(refused, NotServerAdmin) else refused.message
        bot, container = self.bot, self.place.container_id
        may = partial(caps.may_tell, refused, bot.platform, bot.bot_account, container)
        self.say(self._private(text), replace(self._public(text), may=may))

    def _asked(self, command: str = "link") -> Asked:
        return Asked(
            where=self.where,
            user_id=self.said.speaker.user_id,
            display_name=self.said.speaker.name,
            place_name=self._server_name() if command == "link" else "",
            is_admin=command == "link" and self._is_admin(),
        )

    def _server_name(self) -> str:
        if self.place.scope == "dm" or self.place.server_name:
            return self.place.server_name
        return outbound.server_name(self.bot.platform, self.place)

    def _is_admin(self) -> bool:
        if self.place.scope == "dm":
            return True
        known = self.said.speaker.is_admin
        user_id = self.said.speaker.user_id
        return outbound.is_admin(self.bot.platform, self.place, user_id) if known is None else known

    def _show(self, command: str, result: Result) -> None:
        text = wording.of(result)
        if isinstance(result, LinkOffered):
            button = Button(label=wording.CONNECT, url=result.link_url)
            self.say(self._private(text, (button,)), self._public(wording.NOT_IN_PUBLIC))
        elif isinstance(result, Status) and result.web_url:
            self.whisper(text)
        elif command in wording.PRIVATE:
            self.hint(text)
        else:
            self.tell(text)

    # --- saying ---

    def tell(self, text: str) -> None:
        self.say(self._public(text))

    def hint(self, text: str) -> None:
        """To who asked alone, or else to all: people whom the bot may not write to get an answer, too. Nothing secret."""
        self.say(self._private(text), self._public(text))

    def whisper(self, text: str) -> None:
        self.say(self._private(text))

    def say(self, *notes: Note) -> None:
        self._spoke = True
        outbound.say(self.bot.platform, *notes)

    def _public(self, text: str) -> Note:
        return Note(to=self.to, text=text)

    def _private(self, text: str, buttons: tuple[Button, ...] = ()) -> Note:
        alone = self.place.scope == "dm"
        return Note(
            to=self.to, text=text, buttons=buttons, only_for="" if alone else self.said.speaker.user_id
        )


def address(place: Place, *, anchor: str = "", reply_token: str = "") -> Address:
    return Address(
        scope=place.scope,
        container_id=place.container_id,
        thread_id=place.thread_id or place.reply_thread,
        anchor=anchor,
        reply_token=reply_token,
    )


# --- presses and places ------------------------------------------------------------------------------


def _press(bot: Bot, place: Place, pressed: Pressed) -> str:
    """Told at once, also when refused; the card itself is changed by who carries the turn."""
    try:
        result = inbound.press(bot, pressed.code, user_id=pressed.speaker.user_id)
    except LATER:
        raise
    except NotFound:
        outcome, text = "refused", wording.BUTTON_GONE
    except Refused as refused:
        outcome, text = "refused", refused.message
    else:
        outcome, text = "pressed", wording.pressed(result)
        _go_on(result)
    outbound.answer_press(bot.platform, address(place), pressed, text)
    return outcome


def _go_on(result: Decided | str) -> None:
    approval_id = as_uuid(result.approval_id) if isinstance(result, Decided) else None
    standing = turns.standing_of_approval(approval_id) if approval_id is not None else None
    if standing is not None:
        outbound.courier().take(standing.turn_id)


def _leave(bot: Bot, place: Place) -> str:
    """The bot was thrown out: nothing is sent there any more, and whoever linked it is told."""
    conversations.shut_place(bot, place.container_id)
    if place.scope == "server":
        link = links.mark_removed(bot, place.server_id)
        if link is not None:
            mails.say_removed(link)
    return "removed"


def _move(bot: Bot, place: Place, new_id: str) -> str:
    """The same owner, sessions and settings under the server's new id (A-L21.2)."""
    try:
        with transaction.atomic():
            links.move_server(bot.platform, place.server_id, new_id)
            conversations.move_place(bot.platform, place.container_id, new_id)
    except IntegrityError:
        log.warning("a server moved to where another one is linked already; it keeps its old id")
        return "conflict"
    return "moved"


def say_linked(token: LinkToken) -> None:
    """Where a link was asked for, if that was one of our bots."""
    ours = outbound.accounts().get(token.platform) == token.bot_account
    if ours and token.notify_container:
        to = Address(scope="server" if token.kind == "server" else "dm", container_id=token.notify_container)
        outbound.say(token.platform, Note(to=to, text=wording.CONNECTED))
