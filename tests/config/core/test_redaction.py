"""Secrets never leave: exact values and the shapes of keys (A9.10, A33.c6)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.core import redaction
from config.core.redaction import MASK, find_setting_secrets, redact, register_secrets

PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEowIBAAKCAQEA1\n/+==\n-----END RSA PRIVATE KEY-----"
# Put together at run time, so that no scanner takes this file for a leak.
KEYS = [
    "sk-" + "proj-" + "a1B2" * 8,
    "sk-" + "ant-api03-" + "a1B2" * 8,
    "sk_" + "live_" + "a1B2" * 6,
    "wh" + "sec_" + "a1B2" * 6,
    "gh" + "p_" + "a1B2" * 9,
    "github" + "_pat_" + "a1B2_" * 12,
    "gl" + "pat-" + "a1B2" * 5,
    "xox" + "b-" + "1234567890-" * 3,
    "AK" + "IA" + "ABCD1234EFGH5678",
    "AI" + "za" + "a1B2c" * 7,
    "hf" + "_" + "a1B2" * 9,
    "ph_" + "user_" + "abcde12345_" + "a1B2-" * 8 + "xyz",
    "eyJ" + "hbGciOiJI.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl-x_y",
]


def test_a_registered_value_is_masked_everywhere() -> None:
    """A9.10, A33.c6"""
    register_secrets(["canary-0b9f", "canary-0b9f-longer", "short", ""])
    text = redact('{"key":"canary-0b9f-longer"} x=canary-0b9f&y=short')
    assert text == f'{{"key":"{MASK}"}} x={MASK}&y=short'


@pytest.mark.parametrize("key", KEYS)
def test_the_shape_of_a_key_is_enough(key: str) -> None:
    """A9.10"""
    for text in (key, f"key={key} end", f'{{"k":"{key}"}}', f"({key})\n", f"KEY:{key}"):
        assert key not in redact(text)
    assert redact(f"before {key} after") == f"before {MASK} after"


@pytest.mark.parametrize("before", ["\n", "\t", "\r\n", "\x1b", '"', "\\"])
@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_found_behind_what_json_escapes(key: str, before: str) -> None:
    """A9.10: what a command puts out reaches the model as JSON, its line ends as letters"""
    assert key not in redact(json.dumps({"stdout": f"first line{before}{key}\n"}))


def test_a_registered_value_is_masked_as_json_writes_it() -> None:
    """A9.10"""
    secret = 'pass"word\\with\nlines'
    redaction.register_temporary_secrets([secret])
    assert redact(json.dumps({"a": secret})) == json.dumps({"a": MASK})
    redaction.release_temporary_secrets([secret])
    assert redact(json.dumps({"a": secret})) == json.dumps({"a": secret})


@pytest.mark.parametrize("word", ["Bearer", "bearer", "BEARER"])
def test_a_bearer_token_is_masked_and_its_word_kept(word: str) -> None:
    """A9.10"""
    assert redact(f"Authorization: {word} abc.def-123456789") == f"Authorization: {word} {MASK}"


def test_a_private_key_is_masked_whole() -> None:
    """A9.10"""
    assert redact(f"a\n{PRIVATE_KEY}\nb {PRIVATE_KEY}") == f"a\n{MASK}\nb {MASK}"


def test_a_private_key_that_is_cut_off_is_masked_to_its_end() -> None:
    """A9.10"""
    cut = "-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA1\nabcd"
    assert redact(f"x {cut}") == f"x {MASK}"


@pytest.mark.parametrize(
    "text",
    [
        "a risk-averse task-force asked the disk-based desk-top",
        "eyJust.a.word and eyJ.. alone",
        "the bearer of bad news; Bearer short",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        "AKIAisnotakey, and ASIA",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    """A9.10"""
    assert redact(text) == text


@given(st.lists(st.sampled_from([*KEYS, PRIVATE_KEY, "word", "\n", '"', " "]), max_size=12))
def test_no_key_survives_any_neighbourhood(pieces: list[str]) -> None:
    """A9.10"""
    found = redact(" ".join(pieces))
    assert not any(key in found for key in KEYS)
    assert redact(found) == found


@pytest.mark.parametrize(
    ("name", "value", "secrets"),
    [
        ("VENDOR_API_KEY", "canary-1234", ["canary-1234"]),
        ("SECRET_KEY_FALLBACKS", ["older-key-1", "older-key-2"], ["older-key-1", "older-key-2"]),
        ("REDIS_URL", "redis://:canary-1234@localhost:6379/0", ["canary-1234"]),
        ("DATABASES", {"default": {"USER": "ada", "PASSWORD": "canary-1234"}}, ["canary-1234"]),
        ("STORAGES", {"workspace": {"OPTIONS": {"secret_key": "canary-1234"}}}, ["canary-1234"]),
        ("DATABASE_URL", "postgres://postgres:postgres@localhost/x", []),
        ("DATABASES", {"default": {"USER": "postgres", "PASSWORD": "postgres"}}, []),
        ("SITE_URL", "https://pilothouse.example/", []),
        ("TURN_MAX_SECONDS", 3_600, []),
    ],
)
def test_every_configured_secret_is_known_by_its_name_or_its_place(name, value, secrets) -> None:
    """A9.10: also of settings to come"""
    assert list(find_setting_secrets(name, value)) == secrets


def test_a_secret_is_found_wherever_a_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A9.10: long texts are searched piece by piece, and no secret hides at a seam"""
    monkeypatch.setattr(redaction, "WINDOW_CHARACTERS", 64)
    key = "sk-" + "k" * 30
    for place in range(140):
        assert redact(" " * place + key + " " * 100) == " " * place + MASK + " " * 100


@given(
    st.lists(
        st.sampled_from(
            [*KEYS, *(key[:-6] for key in KEYS), PRIVATE_KEY, PRIVATE_KEY[:40], "Bearer ", "x", " "]
        ),
        max_size=6,
    )
)
def test_short_texts_are_looked_through_another_way_to_the_same_end(parts: list[str]) -> None:
    """A9.10"""
    text, much_more = "".join(parts)[: redaction.SHORT_TEXT_CHARACTERS], "!" * redaction.SHORT_TEXT_CHARACTERS
    assert redact(text) + much_more == redact(text + much_more)
