"""What comes in from chat platforms and bots: messages, commands, decisions and answers (L12, L14, L15).

Our own adapters and the bot REST call the same functions, so that behaviour cannot drift (L11).
"""

from copilot.context import Channel
from copilot.errors import Forbidden, NotFound
from linking.inbound.buttons import press
from linking.inbound.commands import COMMANDS, Asked, command_of, obey
from linking.inbound.controls import Decided, Stopped, answer, decide, stop
from linking.inbound.hearing import Answered, hear
from linking.inbound.messages import Accepted, IncomingMessage, start, starts_here
from linking.inbound.seeing import is_own, session_seen, turn_seen

__all__ = [
    "COMMANDS",
    "Accepted",
    "Answered",
    "Asked",
    "Channel",
    "Decided",
    "Forbidden",
    "IncomingMessage",
    "NotFound",
    "Stopped",
    "answer",
    "command_of",
    "decide",
    "hear",
    "is_own",
    "obey",
    "press",
    "session_seen",
    "start",
    "starts_here",
    "stop",
    "turn_seen",
]
