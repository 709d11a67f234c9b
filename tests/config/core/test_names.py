"""What files may be called: stored names (S4, A22.3) and the header's value (S6)."""

from __future__ import annotations

from email.message import Message
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.core.text import build_content_disposition, clean_filename


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ada\\notes.txt", "notes.txt"),
        ("a<b>:c|d?.txt", "a_b__c_d_.txt"),
        ("  spaced name.md  ", "spaced name.md"),
        ("evil\r\nname\x00.txt", "evilname.txt"),
        ("\u202egnp.exe", "gnp.exe"),
        ("日本語.pdf", "日本語.pdf"),
        ("हिन्दी.txt", "हिन्दी.txt"),
        ("e\u0301tude.txt", "\u00e9tude.txt"),
        ("", "file"),
        ("..", "file"),
        ("folder/", "file"),
        ("\ud800", "file"),
    ],
)
def test_a_stored_name_is_one_harmless_path_part(raw: str, kept: str) -> None:
    """S4, A22.3, A22.c1"""
    assert clean_filename(raw) == kept


def test_a_long_name_keeps_its_extension() -> None:
    """S4"""
    name = clean_filename("日" * 300 + ".tar.gz")
    assert name.endswith(".gz")
    assert len(name.encode()) <= 255


@given(st.text())
def test_any_text_makes_a_usable_name(raw: str) -> None:
    """S4"""
    name = clean_filename(raw)
    assert 0 < len(name.encode()) <= 255
    assert not set(name) & set('/\\\x00\r\n"<>\u202e')
    assert clean_filename(name) == name


def test_a_plain_name_is_quoted() -> None:
    """A-S6.1"""
    assert build_content_disposition("attachment", "report.pdf") == 'attachment; filename="report.pdf"'


def test_a_name_cannot_begin_another_header() -> None:
    """A-S6.2"""
    value = build_content_disposition("attachment", "evil.txt\r\nX-Injected: true")
    assert value == 'attachment; filename="evil.txtX-Injected: true"'


def test_quotes_and_backslashes_are_escaped() -> None:
    """A-S6.3"""
    assert build_content_disposition("inline", 'a"b\\c.txt') == 'inline; filename="a\\"b\\\\c.txt"'


def test_a_name_beyond_ascii_has_a_fallback_and_decodes_back() -> None:
    """A-S6.4"""
    value = build_content_disposition("attachment", "日本語.pdf")
    fallback, _, extended = value.partition("; filename*=UTF-8''")
    assert fallback == 'attachment; filename="___.pdf"'
    assert unquote(extended) == "日本語.pdf"


@pytest.mark.parametrize("name", [";" * 255, "\u202e", "", "\x00", "/"])
def test_odd_names_make_valid_headers(name: str) -> None:
    """A-S6.5"""
    message = Message()
    message["Content-Disposition"] = build_content_disposition("attachment", name)
    assert message.get_content_disposition() == "attachment"
    assert message.get_filename()


@given(st.text())
def test_any_name_makes_one_ascii_line(name: str) -> None:
    """S6"""
    value = build_content_disposition("attachment", name)
    assert value.isascii()
    assert value.isprintable()
