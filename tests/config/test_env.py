"""Kinds of environment variables: what they accept, and how they refuse the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from config import env

NAME = "PILOTHOUSE_TRIED_HERE"


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (env.flag, "perhaps"),
        (env.integer(), "many"),
        (env.integer(least=5), "4"),
        (env.integer(most=7), "8"),
        (env.integers(least=1), "80, 0"),
        (env.integers(), "80, http"),
        (env.seconds(), "soon"),
        (env.seconds(), "nan"),
        (env.seconds(), "inf"),
        (env.byte_size(), "50 apples"),
        (env.byte_size(), "-1 MB"),
        (env.byte_size(least=2048), "1 KB"),
        (env.choice("a", "b"), "c"),
        (env.networks, "proxy.internal"),
        (env.networks, "10.0.0.5/8"),
        (env.networks, "*, 10.0.0.5"),
        (env.currency, "dollars"),
        (env.currency, "usb"),
        (env.currency, "jpy"),
        (env.email, "hello"),
        (env.email, "a@b.org, c@d.org"),
        (env.email, "Us <a@b.org> (x)"),
        (env.email, "Us\nBcc: c@d.org <a@b.org>"),
        (env.site_url, "chat.example.com"),
    ],
)
def test_a_bad_value_is_refused_with_its_variable_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, kind: env.Kind[object], bad: str
):
    monkeypatch.setenv(NAME, bad)
    with pytest.raises(ImproperlyConfigured) as refused:
        env.read_variable(NAME, kind, None)
    assert str(refused.value) == f"{NAME} must be {kind.allowed}, not {bad!r}"


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (env.service_url, "collector:4318"),
        (env.service_url, "http://collector:port"),
        (env.redis_url, "redis://:hunter2@host:port/0"),
        (env.redis_url, "redis://:hunter2@host/first"),
        (env.redis_url, "http://host"),
    ],
)
def test_a_bad_address_that_may_hold_a_password_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, kind: env.Kind[object], bad: str
):
    monkeypatch.setenv(NAME, bad)
    with pytest.raises(ImproperlyConfigured) as refused:
        env.read_variable(NAME, kind, None)
    assert str(refused.value) == f"{NAME} must be {kind.allowed}"


def test_an_empty_value_is_no_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(NAME, " ")
    assert env.read_variable(NAME, env.flag, True) is True
    assert env.read_variable(NAME, env.integer(), 7) == 7
    assert env.read_variable(NAME, env.words, ["a"]) == ["a"]
    assert env.read_variable(NAME, env.text, "default") == "default"


def test_an_empty_value_can_switch_something_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(NAME, "")
    assert env.read_variable(NAME, env.optional_text, "bwrap") == ""


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (env.flag, "on", True),
        (env.flag, "No", False),
        (env.integer(), " 12 ", 12),
        (env.seconds(), "2.5", 2.5),
        (env.integers(), "80, 443", [80, 443]),
        (env.words, "a, b,,c", ["a", "b", "c"]),
        (env.named_addresses, "a@b.org", [("a@b.org", "a@b.org")]),
        (env.byte_size(), "52428800", 50 * 2**20),
        (env.byte_size(), "50 MB", 50 * 2**20),
        (env.byte_size(), "1gb", 2**30),
        (env.networks, "*", "*"),
        (env.networks, "10.0.0.0/8, fd00::1", "10.0.0.0/8,fd00::1"),
        (env.currency, "EUR", "eur"),
        (env.email, "Pilothouse <a@b.org>", "Pilothouse <a@b.org>"),
        (env.email, "a@intranet", "a@intranet"),
        (env.site_url, "https://chat.example.com/", "https://chat.example.com"),
        (env.service_url, "http://collector:4318", "http://collector:4318"),
        (env.redis_url, "rediss://:hunter2@host:6380/2", "rediss://:hunter2@host:6380/2"),
        (env.redis_url, "unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_good_values_are_read(
    monkeypatch: pytest.MonkeyPatch, kind: env.Kind[object], given: str, meant: object
):
    monkeypatch.setenv(NAME, given)
    assert env.read_variable(NAME, kind, None) == meant


@pytest.mark.parametrize(
    ("kind", "default", "shown"),
    [
        (env.byte_size(), 50 * 2**20, "`50 MB`"),
        (env.byte_size(), 1000, "`1000 bytes`"),
        (env.seconds(), 0.5, "`0.5`"),
        (env.flag, True, "`true`"),
        (env.words, [], "–"),
        (env.integers(), [80, 443], "`80,443`"),
    ],
)
def test_a_group_lists_what_it_reads(kind: env.Kind[object], default: object, shown: str):
    group = env.Group("Here")
    assert group.read(NAME, kind, default, "For tests.") == default
    assert group.variables == [env.Variable(NAME, kind.shown, shown, "For tests.")]


def test_variables_that_look_like_ours_are_found():
    known = {"REDIS_URL", "ALLOWED_HOSTS", "LINK_CHANNEL_MESSAGES"}
    given = {"REDIS_URI", "ALLOWED_HOST", "LINK_NOTICE_SECONDS", "REDIS_URL", "PATH", "HOSTNAME"}
    assert env.find_unread_variables(given, known, ("LINK_",)) == {
        "ALLOWED_HOST": "ALLOWED_HOSTS",
        "LINK_NOTICE_SECONDS": "",
        "REDIS_URI": "REDIS_URL",
    }


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
    os.environ.pop(NAME)  # the function set it, not monkeypatch
