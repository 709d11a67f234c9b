"""Requests as the platforms send them, in the shape of their documents' examples."""

from __future__ import annotations

import hashlib
import hmac
import time

Payload = dict[str, object]

# Ids as long as the real ones, so that a log that held one would be found out.
ADA, BOB, GROUP = 6142857142, 6142857143, -1002718281828  # on Telegram
TELEGRAM_BOT = 7001234567
DISCORD_ADA, DISCORD_BOT, DISCORD_APP = "1185234567890123042", "1185234567890120901", "1185234567890120900"
GUILD, CHANNEL, THREAD, ROLE = (
    "1185234567890120500",
    "1185234567890120600",
    "1185234567890120601",
    "1185234567890120701",
)
SLACK_ADA, SLACK_BOT, SLACK_APP, TEAM = "U07ADALOVEL", "U07PILOTBOT", "A07PILOTAPP", "T07BOATS001"
SLACK_CHANNEL, SLACK_DM = "C07GENERAL1", "D07PRIVATE1"
IDS = (
    *(str(ADA), str(BOB), str(GROUP), str(TELEGRAM_BOT), DISCORD_ADA, DISCORD_BOT, DISCORD_APP),
    *(GUILD, CHANNEL, THREAD, ROLE, SLACK_ADA, SLACK_BOT, SLACK_APP, TEAM, SLACK_CHANNEL, SLACK_DM),
)


def telegram_message(
    *, text: str, update_id: int = 10, message_id: int = 7, chat_id: int = ADA, is_bot: bool = False
) -> Payload:
    sender = {
        "id": chat_id,
        "is_bot": is_bot,
        "first_name": "Ada",
        "last_name": "Lovelace",
        "username": "ada",
    }
    chat = {"id": chat_id, "type": "private", "first_name": "Ada"}
    entities = []
    if text.startswith("/"):
        entities = [{"type": "bot_command", "offset": 0, "length": len(text.split(maxsplit=1)[0])}]
    message = {
        "message_id": message_id,
        "from": sender,
        "chat": chat,
        "date": 1763290000,
        "text": text,
        "entities": entities,
    }
    return {"update_id": update_id, "message": message}


def telegram_group_message(
    *,
    text: str,
    offset: int,
    update_id: int = 11,
    message_id: int = 8,
    user_id: int = BOB,
    topic: int = 3,
) -> Payload:
    """With a mention of @PilotBot at `offset` units."""
    message = {
        "message_id": message_id,
        "message_thread_id": topic,
        "is_topic_message": True,
        "from": {"id": user_id, "is_bot": False, "first_name": "Bob"},
        "chat": {"id": GROUP, "type": "supergroup", "title": "Boats", "is_forum": True},
        "date": 1763290000,
        "text": text,
        "entities": [{"type": "mention", "offset": offset, "length": 9}],
    }
    return {"update_id": update_id, "message": message}


def telegram_press(
    code: str,
    *,
    update_id: int = 12,
    message_id: int = 9,
    chat_id: int = ADA,
    user_id: int = ADA,
    press_id: str = "cb1",
) -> Payload:
    chat = {"id": chat_id, "type": "private"}
    if chat_id < 0:
        chat = {"id": chat_id, "type": "supergroup", "title": "Boats", "is_forum": True}
    return {
        "update_id": update_id,
        "callback_query": {
            "id": press_id,
            "from": {"id": user_id, "is_bot": False, "first_name": "Ada"},
            "message": {
                "message_id": message_id,
                "chat": chat,
                "date": 1763290000,
                "text": "…",
            },
            "chat_instance": "1",
            "data": code,
        },
    }


def telegram_membership(status: str, *, update_id: int = 13, chat_id: int = ADA) -> Payload:
    user = {"id": TELEGRAM_BOT, "is_bot": True, "first_name": "Pilot"}
    return {
        "update_id": update_id,
        "my_chat_member": {
            "chat": {"id": chat_id, "type": "private"},
            "from": {"id": chat_id, "is_bot": False, "first_name": "Ada"},
            "date": 1763290000,
            "old_chat_member": {"user": user, "status": "member"},
            "new_chat_member": {"user": user, "status": status},
        },
    }


def telegram_migration(old: str, new: str, *, update_id: int = 14) -> Payload:
    message = {
        "message_id": 10,
        "from": {"id": ADA, "is_bot": False, "first_name": "Ada"},
        "chat": {"id": int(old), "type": "group", "title": "Boats"},
        "date": 1763290000,
        "migrate_to_chat_id": int(new),
    }
    return {"update_id": update_id, "message": message}


def _discord_interaction(interaction_id: str, kind: int, data: Payload, *, dm: bool) -> Payload:
    user = {"id": DISCORD_ADA, "username": "ada", "global_name": "Ada"}
    member = {"user": user, "roles": [ROLE], "permissions": str(0x20)}
    place: Payload = {"user": user} if dm else {"guild_id": GUILD, "member": member}
    return {
        "id": interaction_id,
        "application_id": DISCORD_APP,
        "type": kind,
        "token": f"interaction-token-{interaction_id}",
        "version": 1,
        "channel_id": CHANNEL,
        "channel": {"id": CHANNEL, "type": 1 if dm else 0},
        "data": data,
        **place,
    }


def discord_command(name: str, words: str, *, interaction_id: str = "3001", dm: bool = False) -> Payload:
    options = [{"name": "text", "type": 3, "value": words}] if words else []
    data: Payload = {"id": "1", "name": name, "type": 1, "options": options}
    return _discord_interaction(interaction_id, 2, data, dm=dm)


def discord_press(
    code: str, *, interaction_id: str = "3002", message_id: str = "88", dm: bool = False
) -> Payload:
    made = _discord_interaction(interaction_id, 3, {"component_type": 2, "custom_id": code}, dm=dm)
    return made | {"message": {"id": message_id}}


def discord_message(*, text: str, message_id: str = "77", channel_id: str = THREAD) -> Payload:
    return {
        "id": message_id,
        "channel_id": channel_id,
        "guild_id": GUILD,
        "type": 0,
        "author": {
            "id": DISCORD_ADA,
            "username": "ada",
            "global_name": "Ada",
            "discriminator": "0",
            "avatar": None,
        },
        "member": {"roles": [ROLE], "nick": None},
        "content": text,
        "mentions": [{"id": DISCORD_BOT, "username": "pilot", "discriminator": "0", "avatar": None}],
        "attachments": [],
        "timestamp": "2026-11-16T12:00:00+00:00",
    }


def slack_event(
    *,
    text: str,
    kind: str = "message",
    event_id: str = "Ev1",
    ts: str = "100.5",
    channel: str = SLACK_CHANNEL,
    channel_type: str = "channel",
    **fields: str,
) -> Payload:
    event = {
        "type": kind,
        "user": SLACK_ADA,
        "text": text,
        "ts": ts,
        "channel": channel,
        "channel_type": channel_type,
    }
    return {
        "token": "unused",
        "team_id": TEAM,
        "api_app_id": SLACK_APP,
        "type": "event_callback",
        "event_id": event_id,
        "event_time": 1763290000,
        "authorizations": [{"team_id": TEAM, "user_id": SLACK_BOT, "is_bot": True}],
        "event": event | fields,
    }


def slack_uninstalled() -> Payload:
    made = slack_event(text="", event_id="Ev9")
    return made | {"event": {"type": "app_uninstalled"}}


def slack_press(
    code: str,
    *,
    channel: str = SLACK_CHANNEL,
    message_ts: str = "200.1",
    thread_ts: str = "100.5",
    number: str = "1",
) -> Payload:
    return {
        "type": "block_actions",
        "user": {"id": SLACK_ADA, "username": "ada", "team_id": TEAM},
        "api_app_id": SLACK_APP,
        "team": {"id": TEAM, "domain": "boats"},
        "channel": {"id": channel, "name": "directmessage" if channel.startswith("D") else "general"},
        "message": {"ts": message_ts, "thread_ts": thread_ts},
        "trigger_id": f"13345224609.738474920.{number}",
        "response_url": "https://hooks.slack.test/actions/1",
        "actions": [{"type": "button", "action_id": code, "value": code, "action_ts": f"30{number}.1"}],
    }


def slack_command(words: str) -> dict[str, str]:
    return {
        "command": "/pilothouse",
        "text": words,
        "team_id": TEAM,
        "team_domain": "boats",
        "channel_id": SLACK_CHANNEL,
        "channel_name": "general",
        "user_id": SLACK_ADA,
        "user_name": "ada",
        "trigger_id": "13345224609.738474920.2",
        "api_app_id": SLACK_APP,
    }


def slack_headers(body: bytes, secret: str, *, age_seconds: int = 0) -> dict[str, str]:
    stamp = str(int(time.time()) - age_seconds)
    digest = hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    return {"x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={digest}"}
