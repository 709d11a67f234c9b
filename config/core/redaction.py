"""Mask secrets in text: exact values known to this installation, and the shapes of well-known keys.

Which values are searched for depends on who wrote the text:

- `redact`: all of them. For logs, errors and everything else our own process could leak.
- `redact_user_text`: the secrets of the turn's own user, and shapes. For tool output that repeats text of people or
models: masking a value of the installation there would confirm a guess.
- `redact_secret_patterns`: shapes only, independent of this installation. For text that returns to its author.

Anchors are found by `str.find`, and a pattern is tried only where one stands. A clean text of many megabytes costs a
few quick scans, and a hostile one cannot make a pattern backtrack.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

MASK = "[REDACTED]"
MIN_SECRET_CHARACTERS = 8  # shorter values occur by chance in ordinary text
MIN_TEMPORARY_SECRET_CHARACTERS = 16  # users choose header values freely: short ones are ordinary words
SHORT_TEXT_CHARACTERS = 1_000  # longer texts are searched faster anchor by anchor
WINDOW_CHARACTERS = 1_000_000  # searched at a time, so that other threads can run in between
MAX_KEY_BLOCK_CHARACTERS = 20_000  # characters between the first and the last line of a private key

_secrets: list[str] = []  # longest first, so that no part of one is left
_temporary_secrets: Counter[str] = Counter()  # secrets in temporary use, and by how many
# Secrets that the user of the running turn lent it; only this turn's texts are compared with them.
_user_secrets: ContextVar[tuple[str, ...]] = ContextVar("own_secrets", default=())


@dataclass(frozen=True)
class _SecretPattern:
    """A secret that starts with `anchor`; the pattern is tried `before` characters in front of it."""

    anchor: str
    pattern: re.Pattern[str]
    before: int = 0


# In JSON a line break is a backslash and a letter, and the next line starts after that letter.
_ESCAPED = r"(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})"


def _make_prefix_pattern(prefix: str, tail: str) -> _SecretPattern:
    return _SecretPattern(prefix, re.compile(rf"(?:(?<![A-Za-z0-9])|{_ESCAPED}){re.escape(prefix)}{tail}"))


_WORDY = r"[A-Za-z0-9_\-]"
_BEARER = re.compile(r"[Bb](?:earer|EARER)(?:\s|%20){1,4}([A-Za-z0-9._~+/=\-]{12,})")
_SECRET_PATTERNS = (
    _make_prefix_pattern("sk-", _WORDY + "{20,}"),
    *(
        _make_prefix_pattern(prefix, "[A-Za-z0-9]{16,}")
        for prefix in ("sk_live_", "sk_test_", "rk_live_", "rk_test_")
    ),
    _make_prefix_pattern("whsec_", "[A-Za-z0-9+/=]{16,}"),
    *(
        _make_prefix_pattern(prefix, "[A-Za-z0-9]{30,}")
        for prefix in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")
    ),
    _make_prefix_pattern("github_pat_", "[A-Za-z0-9_]{40,}"),
    _make_prefix_pattern("glpat-", _WORDY + "{20,}"),
    *(
        _make_prefix_pattern(prefix, "[A-Za-z0-9-]{20,}")
        for prefix in ("xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xapp-")
    ),
    *(_make_prefix_pattern(prefix, "[A-Z0-9]{16}(?![A-Za-z0-9])") for prefix in ("AKIA", "ASIA")),
    _make_prefix_pattern("AIza", _WORDY + "{35}"),
    _make_prefix_pattern("ya29.", _WORDY + "{20,}"),
    _make_prefix_pattern("hf_", "[A-Za-z0-9]{30,}"),
    _make_prefix_pattern("npm_", "[A-Za-z0-9]{30,}"),
    _make_prefix_pattern("pypi-", _WORDY + "{40,}"),
    _make_prefix_pattern("SG.", _WORDY + r"{16,}\." + _WORDY + "{16,}"),
    *(
        _make_prefix_pattern(prefix, "[A-Za-z0-9]{10}_" + _WORDY + "{20,}")
        for prefix in ("ph_user_", "ph_bot_")
    ),
    # Segments are possessive and exclude the boundary's characters, so that each is read a fixed number of times.
    _SecretPattern(
        "eyJ", re.compile(rf"(?:(?<![\w\-])|{_ESCAPED})eyJ{_WORDY}{{8,}}+\.{_WORDY}{{8,}}+\.{_WORDY}++")
    ),
    _SecretPattern("earer", _BEARER, before=1),
    _SecretPattern("EARER", _BEARER, before=1),
)
_KEY_HEAD = "-----BEGIN "
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=\s\\]*+")
_ANCHORS = re.compile(
    "|".join(re.escape(anchor) for anchor in {_KEY_HEAD, *(one.anchor for one in _SECRET_PATTERNS)})
)

_SECRET_NAME = re.compile(r"(?:KEYS?|SECRETS?|TOKENS?|PASSWORD|FALLBACKS)$", re.I)
_PASSWORD_IN_ADDRESS = re.compile(r"://([^/@:\s]*):(?!\1@)([^/@\s]+)@")  # `postgres:postgres` is no secret


def find_setting_secrets(name: str, value: object) -> Iterator[str]:
    """Collect the secrets of a setting: its value if the name says so, and passwords in URLs, however nested."""
    match value:
        case str() if _SECRET_NAME.search(name):
            yield value
        case str():
            yield from (password for _, password in _PASSWORD_IN_ADDRESS.findall(str(value)))
        case dict():
            for key, inner in value.items():
                if inner != value.get("USER"):
                    yield from find_setting_secrets(str(key), inner)
        case list() | tuple():
            for inner in value:
                yield from find_setting_secrets(name, inner)
        case _:
            pass


def register_secrets(values: Iterable[str]) -> None:
    """Remember configured secrets; called once at boot."""
    known = {*_secrets, *_spell_secrets(values)}
    _secrets[:] = _longest_first(known)


def set_user_secrets(values: Iterable[str]) -> None:
    """Mask these values in the texts of the running task and of the tasks it starts, and nowhere else."""
    _user_secrets.set(_longest_first({*_user_secrets.get(), *_spell_temporary(values)}))


def register_temporary_secrets(values: Iterable[str]) -> None:
    """Register secrets of the installation while they are in use; each call needs one that forgets them."""
    usable = _spell_temporary(values)
    _temporary_secrets.update(
        value for value in usable if value in _temporary_secrets or value not in _secrets
    )
    register_secrets(usable)


def release_temporary_secrets(values: Iterable[str]) -> None:
    for value in _spell_temporary(values):
        if value not in _temporary_secrets:
            continue  # configured at boot, too
        _temporary_secrets[value] -= 1
        if not _temporary_secrets[value]:
            del _temporary_secrets[value]
            _secrets.remove(value)


def _longest_first(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def _spell_temporary(values: Iterable[str]) -> set[str]:
    return _spell_secrets(value for value in values if len(value) >= MIN_TEMPORARY_SECRET_CHARACTERS)


def _spell_secrets(values: Iterable[str]) -> set[str]:
    """Return the secrets that are long enough, as they are and as JSON spells them."""
    usable = {value for value in values if len(value) >= MIN_SECRET_CHARACTERS}
    return usable | {json.dumps(value, ensure_ascii=False)[1:-1] for value in usable}


def redact(text: str) -> str:
    """Mask every known secret and everything with the shape of a key."""
    own = _user_secrets.get()
    return _redact_text(text, _longest_first({*_secrets, *own}) if own else _secrets)


def redact_user_text(text: str) -> str:
    """Mask the secrets of the turn's own user and everything with the shape of a key."""
    return _redact_text(text, _user_secrets.get())


def redact_secret_patterns(text: str) -> str:
    """Mask everything with the shape of a key, independent of what this installation knows."""
    return _redact_text(text, ())


def _redact_text(text: str, secrets: Sequence[str]) -> str:
    if len(text) <= SHORT_TEXT_CHARACTERS and _is_clean(text, secrets):
        return text
    for secret in secrets:
        if _find_in_windows(text, secret) != -1:
            text = text.replace(secret, MASK)
    spans = sorted(
        (
            *_find_key_blocks(text),
            *(span for shape in _SECRET_PATTERNS for span in _find_pattern_spans(shape, text)),
        )
    )
    return _mask_spans(text, spans) if spans else text


def _is_clean(text: str, secrets: Sequence[str]) -> bool:
    """Return True if the text can contain no secret. One scan for a log line instead of one per anchor."""
    return len(text) < MIN_SECRET_CHARACTERS or not (
        _ANCHORS.search(text) or any(secret in text for secret in secrets)
    )


def _find_in_windows(text: str, words: str, start: int = 0) -> int:
    while True:
        end = start + WINDOW_CHARACTERS + len(words) - 1
        at = text.find(words, start, end)
        if at != -1 or end >= len(text):
            return at
        start += WINDOW_CHARACTERS


def _find_pattern_spans(shape: _SecretPattern, text: str) -> Iterator[tuple[int, int]]:
    at = _find_in_windows(text, shape.anchor)
    while at != -1:
        match = shape.pattern.match(text, max(at - shape.before, 0))
        if match is None:
            at = _find_in_windows(text, shape.anchor, at + 1)
            continue
        yield match.span(1 if shape.pattern.groups else 0)
        at = _find_in_windows(text, shape.anchor, match.end())


def _find_key_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Find whole private keys; of a truncated one, everything after its first line."""
    at, foot = _find_in_windows(text, _KEY_HEAD), 0
    while at != -1:
        begin = _KEY_BEGIN.match(text, at)
        if begin is None:
            at = _find_in_windows(text, _KEY_HEAD, at + 1)
            continue
        if foot != -1 and foot < begin.end():
            foot = _find_in_windows(text, "-----END ", begin.end())
        end = _find_key_end(text, begin.end(), foot)
        yield at, end
        at = _find_in_windows(text, _KEY_HEAD, end)


def _find_key_end(text: str, start: int, foot: int) -> int:
    last_line = _KEY_END.match(text, foot) if 0 <= foot <= start + MAX_KEY_BLOCK_CHARACTERS else None
    if last_line is not None:
        return last_line.end()
    body = _KEY_BODY.match(text, start)
    assert body is not None  # it can match the empty string
    return body.end()


def _mask_spans(text: str, spans: list[tuple[int, int]]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end in spans:
        if start >= done:
            pieces += (text[done:start], MASK)
        done = max(done, end)
    pieces.append(text[done:])
    return "".join(pieces)
