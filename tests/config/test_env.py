"""Typed reads of the environment: a bad value stops the boot and names the variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from config import env

NAME = "PILOTHOUSE_TRIED_HERE"


@pytest.mark.parametrize(
    ("read", "bad"),
    [
        (lambda: env.read_flag(NAME, False), "perhaps"),
        (lambda: env.read_integer(NAME, 1), "many"),
        (lambda: env.read_integer(NAME, 1, least=5), "4"),
        (lambda: env.read_seconds(NAME, 1), "soon"),
        (lambda: env.read_seconds(NAME, 1), "nan"),
        (lambda: env.read_seconds(NAME, 1), "inf"),
        (lambda: env.read_byte_size(NAME, 1), "50 apples"),
        (lambda: env.read_byte_size(NAME, 1), "-1 MB"),
        (lambda: env.read_byte_size(NAME, 1, least=2048), "1 KB"),
        (lambda: env.read_choice(NAME, "a", ("a", "b")), "c"),
        (lambda: env.read_proxies(NAME, "127.0.0.1"), "proxy.internal"),
        (lambda: env.read_proxies(NAME, "127.0.0.1"), "10.0.0.5/8"),
        (lambda: env.read_proxies(NAME, "127.0.0.1"), "*, 10.0.0.5"),
        (lambda: env.read_currency(NAME, "usd"), "dollars"),
        (lambda: env.read_currency(NAME, "usd"), "usb"),
        (lambda: env.read_currency(NAME, "usd"), "jpy"),
        (lambda: env.read_email(NAME, "a@b.org"), "hello"),
        (lambda: env.read_email(NAME, "a@b.org"), "a@b.org, c@d.org"),
        (lambda: env.read_email(NAME, "a@b.org"), "Us <a@b.org> (x)"),
        (lambda: env.read_email(NAME, "a@b.org"), "Us\nBcc: c@d.org <a@b.org>"),
        (lambda: env.read_http_url(NAME), "collector:4318"),
        (lambda: env.read_http_url(NAME), "http://collector:port"),
    ],
)
def test_a_bad_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, read, bad: str):
    monkeypatch.setenv(NAME, bad)
    with pytest.raises(ImproperlyConfigured, match=NAME):
        read()


def test_an_empty_value_is_no_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(NAME, "")
    assert env.read_flag(NAME, True) is True
    assert env.read_integer(NAME, 7) == 7
    assert env.read_seconds(NAME, 2.5) == 2.5
    assert env.read_list(NAME, ["a"]) == ["a"]


def test_good_values_are_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(NAME, "on")
    assert env.read_flag(NAME, False) is True
    monkeypatch.setenv(NAME, " 12 ")
    assert env.read_integer(NAME, 1) == 12
    monkeypatch.setenv(NAME, "a, b,,c")
    assert env.read_list(NAME, []) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("read", "given", "meant"),
    [
        (lambda: env.read_proxies(NAME, "127.0.0.1"), "", "127.0.0.1"),
        (lambda: env.read_proxies(NAME, "127.0.0.1"), "*", "*"),
        (lambda: env.read_proxies(NAME, "127.0.0.1"), "10.0.0.0/8, fd00::1", "10.0.0.0/8,fd00::1"),
        (lambda: env.read_currency(NAME, "usd"), "EUR", "eur"),
        (lambda: env.read_currency(NAME, "usd"), "", "usd"),
        (lambda: env.read_email(NAME, "a@b.org"), "Pilothouse <a@b.org>", "Pilothouse <a@b.org>"),
        (lambda: env.read_email(NAME, "a@b.org"), "a@intranet", "a@intranet"),
        (lambda: env.read_http_url(NAME), "http://collector:4318", "http://collector:4318"),
    ],
)
def test_addresses_and_currencies_are_read(monkeypatch: pytest.MonkeyPatch, read, given: str, meant: str):
    monkeypatch.setenv(NAME, given)
    assert read() == meant


def test_a_running_installation_is_adopted_where_nothing_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    file = tmp_path / "run.env"
    file.write_text(f"DATABASE_URL=postgres://there/db\n{NAME}=x=y\n")
    monkeypatch.setenv("DATABASE_URL", "postgres://mine/db")
    env.load_run_environment(file)
    assert NAME not in os.environ
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.delenv(NAME, raising=False)
    env.load_run_environment(file)
    assert (os.environ["DATABASE_URL"], os.environ[NAME]) == ("postgres://there/db", "x=y")
    monkeypatch.delenv(NAME)


@pytest.mark.parametrize(
    ("value", "size"), [("", 7), ("52428800", 50 * 2**20), ("50 MB", 50 * 2**20), ("1gb", 2**30)]
)
def test_a_size_is_read_with_and_without_its_unit(monkeypatch: pytest.MonkeyPatch, value: str, size: int):
    monkeypatch.setenv(NAME, value)
    assert env.read_byte_size(NAME, 7) == size
