"""Kinds of environment variables and the table they are declared in. A bad value stops the start and names the variable."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from email.utils import parseaddr
from ipaddress import ip_network
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured
from psycopg import pq

T = TypeVar("T")
_env = environ.Env()
_URL_EXAMPLE = "postgres://user:password@host:5432/database"
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_DRIVER_FLAGS = frozenset({"server_side_binding"})
_DRIVER_NUMBERS = frozenset(
    {
        "prepare_threshold",
        "connect_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
    }
)
# Codes of ISO 4217 whose smallest unit is a hundredth: amounts are kept and charged in cents.
_CURRENCIES = (
    "aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bmd bnd bob brl bsd btn bwp byn bzd cad cdf "
    "chf cny cop crc cup cve czk dkk dop dzd egp ern etb eur fjd fkp gbp gel ghs gip gmd gtq gyd hkd hnl "
    "htg huf idr ils inr irr jmd kes kgs khr kpw kyd kzt lak lbp lkr lrd lsl mad mdl mkd mmk mop mur mvr "
    "mwk mxn myr mzn nad ngn nio nok npr nzd pab pen pgk php pkr pln qar ron rsd rub sar sbd scr sdg sek "
    "sgd shp sle sos srd ssp stn svc syp szl thb tjs tmt top try ttd twd tzs uah usd uyu uzs ves wst xcd "
    "yer zar zmw"
)
_BYTE_UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_BYTE_SIZE = re.compile(r"([0-9]{1,15})\s*([KMG]B)?", re.IGNORECASE)
_BARE_EMAIL = re.compile(r"\A[^@\s<>,]+@[^@\s<>,]+")
_COMMAND_END = re.compile(r"[;\n]")
_SIMILARITY = 0.85  # of a name and its misspelling: one letter in ten more, less or different


class BadValue(ValueError):
    """A value that its kind refuses in words of its own, which follow the name of the variable."""


def _show_default(value: object) -> str:
    if value in ("", []):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return "`" + ",".join(map(str, value)) + "`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


@dataclass(frozen=True)
class Kind(Generic[T]):
    """The values a variable may hold: how text becomes one, and how errors and the reference describe them."""

    parse: Callable[[str], T]  # raises ValueError
    allowed: str  # completes "NAME must be …"
    shown: str  # in the reference
    show_default: Callable[[T], str] = _show_default
    may_hold_secret: bool = False  # then errors do not repeat the value
    empty_is_value: bool = False  # otherwise an empty variable counts as not set


@dataclass(frozen=True)
class Variable:
    """One row of the table, as the reference shows it."""

    name: str
    kind: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Group:
    """A topic of the table. Reading a variable also declares it."""

    title: str
    intro: str = ""
    variables: list[Variable] = field(default_factory=list)

    def read(self, name: str, kind: Kind[T], default: T, meaning: str, *, shown_default: str = "") -> T:
        """Read and declare a variable. `shown_default` says the default in words where code computes it."""
        self.declare(name, kind.shown, shown_default or kind.show_default(default), meaning)
        return read_variable(name, kind, default)

    def declare(self, name: str, kind: str, default: str, meaning: str) -> None:
        """Declare a variable that another program or library reads."""
        self.variables.append(Variable(name, kind, default, meaning))


def read_variable(name: str, kind: Kind[T], default: T) -> T:
    value = os.environ.get(name)
    if value is None or (not value.strip() and not kind.empty_is_value):
        return default
    try:
        return kind.parse(value)
    except BadValue as problem:
        raise ImproperlyConfigured(f"{name} {problem}") from None
    except ValueError:
        given = "" if kind.may_hold_secret else f", not {value.strip()!r}"
        raise ImproperlyConfigured(f"{name} must be {kind.allowed}{given}") from None


def find_unread_variables(
    given: Iterable[str], known: Collection[str], prefixes: tuple[str, ...]
) -> dict[str, str]:
    """Find variables that look like known ones and are not; each with the name that was probably meant, or nothing."""
    unread: dict[str, str] = {}
    for name in sorted(set(given).difference(known)):
        close = get_close_matches(name.upper(), known, n=1, cutoff=_SIMILARITY)
        if close or name.startswith(prefixes):
            unread[name] = close[0] if close else ""
    return unread


# --- kinds -------------------------------------------------------------------------------------------

text = Kind(str, "text", "text")
optional_text = Kind(str, "text", "text", empty_is_value=True)  # set to nothing, it switches something off
secret = Kind(str, "text", "secret", may_hold_secret=True)
path = Kind(Path, "a path", "path")


def _parse_label(value: str) -> str:
    if not _LABEL.fullmatch(value):
        raise ValueError
    return value


label = Kind(_parse_label, "1 to 40 letters, digits, dots, dashes or underscores", "name")


def _parse_flag(value: str) -> bool:
    word = value.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off"}:
        return False
    raise ValueError


flag = Kind(_parse_flag, "true or false", "`true`, `false`")


def integer(*, least: int = 0, most: int | None = None) -> Kind[int]:
    def parse(value: str) -> int:
        return _check_range(int(value), least, most)

    return Kind(parse, f"a whole number {_describe_range(least, most)}", "number" + _show_range(least, most))


def seconds(*, least: float = 0, most: float | None = None) -> Kind[float]:
    def parse(value: str) -> float:
        return _check_range(float(value), least, most)

    return Kind(
        parse, f"a number of seconds {_describe_range(least, most)}", "seconds" + _show_range(least, most)
    )


def integers(*, least: int = 0, most: int | None = None) -> Kind[list[int]]:
    def parse(value: str) -> list[int]:
        return [_check_range(int(word), least, most) for word in _split_words(value)]

    allowed = f"whole numbers, separated by commas, {_describe_range(least, most)}"
    return Kind(parse, allowed, "numbers" + _show_range(least, most))


def byte_size(*, least: int = 1) -> Kind[int]:
    """Bytes such as `52428800`, `50 MB` or `1GB`, in powers of two."""

    def parse(value: str) -> int:
        read = _BYTE_SIZE.fullmatch(value.strip())
        if read is None:
            raise ValueError
        return _check_range(int(read[1]) * _BYTE_UNITS[(read[2] or "").upper()], least, None)

    allowed = f"a size such as 50 MB, of at least {_show_size(least)}"
    return Kind(parse, allowed, "size", lambda size: f"`{_show_size(size)}`")


Number = TypeVar("Number", int, float)


def _check_range(number: Number, least: float, most: float | None) -> Number:
    if not least <= number < float("inf") or (most is not None and number > most):
        raise ValueError
    return number


def _describe_range(least: float, most: float | None) -> str:
    return f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"


def _show_range(least: float, most: float | None) -> str:
    if most is not None:
        return f", {least:g} to {most:.15g}"
    return f", from {least:g}" if least else ""


def _show_size(size: int) -> str:
    for unit in ("GB", "MB", "KB"):
        if size % _BYTE_UNITS[unit] == 0:
            return f"{size // _BYTE_UNITS[unit]} {unit}"
    return f"{size} bytes"


def _split_words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


words = Kind(_split_words, "words separated by commas", "list")
# Django's ADMINS are pairs of a name and an address.
named_addresses = Kind(
    lambda value: [(word, word) for word in _split_words(value)], "addresses separated by commas", "list"
)


def choice(*allowed: str) -> Kind[str]:
    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError
        return value

    return Kind(parse, f"one of {', '.join(allowed)}", ", ".join(f"`{word}`" for word in allowed))


def _parse_commands(value: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for line in _COMMAND_END.split(value):
        try:
            command = tuple(shlex.split(line))
        except ValueError:
            raise BadValue(f"has a command whose quotes do not match: {line!r}") from None
        if command and not command[0].startswith("/"):
            raise BadValue(f"needs the absolute path of every program, not {command[0]!r}")
        found += [command] if command else []
    return found


# Shell-quoted, one per line or separated by semicolons.
commands = Kind(_parse_commands, "commands", "commands")


def _parse_networks(value: str) -> str:
    given = _split_words(value)
    for one in given if given != ["*"] else ():
        ip_network(one)
    return ",".join(given)


networks = Kind(
    _parse_networks,
    "IP addresses or networks such as 10.0.0.5 or 10.0.0.0/8, or * alone",
    "addresses",
)


def _parse_currency(value: str) -> str:
    code = value.strip().lower()
    if code not in _CURRENCIES.split():
        raise ValueError
    return code


currency = Kind(
    _parse_currency, "the three-letter code of a currency with cents, such as usd or eur", "currency"
)


def _parse_email(value: str) -> str:
    value = value.strip()
    _, bare = parseaddr(value)
    is_whole = value == bare or (value.endswith(f"<{bare}>") and value.isprintable())
    if not is_whole or not _BARE_EMAIL.fullmatch(bare):
        raise ValueError
    return value


# With a name before the address or without.
email = Kind(
    _parse_email, "an email address such as hello@example.com, or Pilothouse <hello@example.com>", "address"
)


def url(*schemes: str, example: str, may_hold_secret: bool = False) -> Kind[str]:
    """An address with a host, without a trailing slash."""

    def parse(value: str) -> str:
        value = value.strip().rstrip("/")
        parts = urlsplit(value)
        if parts.scheme not in schemes or not parts.hostname or parts.port == 0:
            raise ValueError
        return value

    return Kind(parse, f"an address such as {example}", "URL", may_hold_secret=may_hold_secret)


site_url = url("http", "https", example="https://chat.example.com")
service_url = url("https", "http", example="https://host:port", may_hold_secret=True)


def _parse_redis_url(value: str) -> str:
    parts = urlsplit(value)
    number = parts.path.strip("/")
    is_socket = parts.scheme == "unix"
    is_server = (
        parts.scheme in ("redis", "rediss")
        and bool(parts.hostname)
        and parts.port != 0
        and (not number or number.isdecimal())
    )
    if not is_socket and not is_server:
        raise ValueError
    return value


redis_url = Kind(
    _parse_redis_url, "an address such as redis://:password@host:6379/0", "URL", may_hold_secret=True
)


def parse_database_url(value: str, options: Mapping[str, object]) -> dict[str, object]:
    """Parse a Postgres URL into Django's form; its query overrides `options`. Errors never show the URL."""
    if not value.startswith(("postgres://", "postgresql://")):
        raise BadValue(f"must begin with postgres://, as in {_URL_EXAMPLE}")
    try:
        config = dict(_env.db_url_config(value))
    except ValueError:  # the exception's text holds the password
        raise BadValue(f"is not a valid URL: it must look like {_URL_EXAMPLE}") from None
    given = config.get("OPTIONS", {})
    if not config["NAME"] and "service" not in given:
        raise BadValue(f"names no database: it must look like {_URL_EXAMPLE}")
    config["OPTIONS"] = {**options, **{key: _check_database_option(key, given[key]) for key in given}}
    return config


def _check_database_option(key: str, value: object) -> object:
    """Refuse options that libpq would refuse only at the first connection, or never."""
    if key in _DRIVER_FLAGS:
        if str(value).lower() not in {"true", "false"}:
            raise BadValue(f"has a bad option: {key} must be true or false, not {value!r}")
        return str(value).lower() == "true"
    if key == "prepare_threshold" and str(value).lower() == "none":
        return None  # for poolers without prepared statements
    if key in _DRIVER_NUMBERS and not isinstance(value, int):
        raise BadValue(f"has a bad option: {key} must be a whole number, not {value!r}")
    if key == "sslmode" and value not in _SSL_MODES:
        raise BadValue(f"has a bad option: sslmode must be one of {', '.join(_SSL_MODES)}, not {value!r}")
    known = {default.keyword.decode() for default in pq.Conninfo.get_defaults()}
    if key not in known | _DRIVER_FLAGS | {"prepare_threshold", "assume_role"}:
        raise BadValue(
            f"has an unknown option: Postgres has no connection option {key!r}; check its spelling"
        )
    return value


def database_url(options: Mapping[str, object]) -> Kind[dict[str, object]]:
    return Kind(
        lambda value: parse_database_url(value, options), "a Postgres URL", "URL", may_hold_secret=True
    )


# --- programs ----------------------------------------------------------------------------------------


def load_run_environment(file: Path) -> None:
    """Read the addresses that a running `make run` wrote, unless the caller has set their own."""
    if file.exists() and not os.environ.get("DATABASE_URL"):
        for line in file.read_text().splitlines():
            name, _, value = line.partition("=")
            os.environ.setdefault(name, value)


def install_settings_error_hook() -> None:
    """Make every program end with one sentence instead of a traceback when a setting is wrong."""
    usual = sys.excepthook

    def explain(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, ImproperlyConfigured):
            sys.stderr.write(f"Wrong settings: {problem}\n")
        else:
            usual(kind, problem, trace)

    sys.excepthook = explain
