"""Read typed values from the environment. A bad value stops the boot and names the variable."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from email.utils import parseaddr
from ipaddress import ip_network
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured
from psycopg import pq

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


def read_text(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def read_label(name: str, default: str) -> str:
    """Read a short name that is used in keys and patterns."""
    value = os.environ.get(name) or default
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", value):
        raise ImproperlyConfigured(
            f"{name} must be 1 to 40 letters, digits, dots, dashes or underscores, not {value!r}"
        )
    return value


def read_site_url(name: str, default: str) -> str:
    """Read a website's address, without a trailing slash."""
    value = (read_text(name) or default).rstrip("/")
    try:
        parts = urlsplit(value)
        well = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        well = False
    if not well:
        raise ImproperlyConfigured(
            f"{name} must be an address such as https://chat.example.com, not {value!r}"
        )
    return value


def read_redis_url(name: str, default: str) -> str:
    """Read a Redis URL. Errors do not show it, because it may hold a password."""
    value = read_text(name) or default
    try:
        parts = urlsplit(value)
        number = parts.path.strip("/")
        well = parts.scheme in ("redis", "rediss", "unix") and (parts.port or 1) > 0
        well = well and (
            parts.scheme == "unix" or (bool(parts.hostname) and (not number or number.isdecimal()))
        )
    except ValueError:
        well = False
    if not well:
        raise ImproperlyConfigured(f"{name} must look like redis://:password@host:6379/0")
    return value


def read_flag(name: str, default: bool) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if not value:
        return default
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ImproperlyConfigured(f"{name} must be true or false, not {value!r}")


def read_integer(name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    try:
        number = int(value)
    except ValueError:
        raise _build_range_error(name, "a whole number", value, least, most) from None
    if number < least or (most is not None and number > most):
        raise _build_range_error(name, "a whole number", value, least, most)
    return number


def read_seconds(name: str, default: float, *, least: float = 0.0, most: float | None = None) -> float:
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    try:
        number = float(value)
    except ValueError:
        raise _build_range_error(name, "a number of seconds", value, least, most) from None
    if not least <= number < float("inf") or (most is not None and number > most):
        raise _build_range_error(name, "a number of seconds", value, least, most)
    return number


def _build_range_error(
    name: str, kind: str, value: str, least: float, most: float | None
) -> ImproperlyConfigured:
    range_of = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
    return ImproperlyConfigured(f"{name} must be {kind} {range_of}, not {value!r}")


def read_byte_size(name: str, default: int, *, least: int = 1) -> int:
    """Read a number of bytes such as `52428800`, `50 MB` or `1GB`, in powers of two."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    read = re.fullmatch(r"([0-9]{1,15})\s*([KMG]B)?", value, re.IGNORECASE)
    if read is None:
        raise ImproperlyConfigured(f"{name} must be a size such as 50 MB, not {value!r}")
    total = int(read[1]) * _BYTE_UNITS[(read[2] or "").upper()]
    if total < least:
        raise ImproperlyConfigured(f"{name} must be at least {least} bytes, not {total}")
    return total


def read_list(name: str, default: list[str]) -> list[str]:
    value = os.environ.get(name, "").strip()
    return [word.strip() for word in value.split(",") if word.strip()] if value else default


def read_commands(name: str) -> list[tuple[str, ...]]:
    """Read shell-quoted commands, one per line or separated by semicolons; each names its program by path."""
    found: list[tuple[str, ...]] = []
    for line in re.split(r"[;\n]", os.environ.get(name, "")):
        try:
            command = tuple(shlex.split(line))
        except ValueError as problem:
            raise ImproperlyConfigured(
                f"{name} has a command whose quotes do not match: {line!r}"
            ) from problem
        if command and not command[0].startswith("/"):
            raise ImproperlyConfigured(f"{name} needs the absolute path of every program, not {command[0]!r}")
        found += [command] if command else []
    return found


def read_proxies(name: str, default: str) -> str:
    """Read the addresses and networks of proxies, or `*` for every peer."""
    given = read_list(name, [default])
    for one in given if given != ["*"] else ():
        try:
            ip_network(one)
        except ValueError:
            raise ImproperlyConfigured(
                f"{name} must list IP addresses or networks such as 10.0.0.5 or 10.0.0.0/8, or be * alone, not {one!r}"
            ) from None
    return ",".join(given)


def read_currency(name: str, default: str) -> str:
    value = (read_text(name).strip() or default).lower()
    if value not in _CURRENCIES.split():
        raise ImproperlyConfigured(
            f"{name} must be the three-letter code of a currency with cents, such as usd or eur, not {value!r}"
        )
    return value


def read_email(name: str, default: str) -> str:
    """Read an email address, with a name before it or without: `Pilothouse <hello@example.com>`."""
    value = read_text(name).strip() or default
    _, bare = parseaddr(value)
    is_whole = value == bare or (value.endswith(f"<{bare}>") and value.isprintable())
    if not is_whole or not re.fullmatch(r"[^@\s<>,]+@[^@\s<>,]+", bare):
        raise ImproperlyConfigured(
            f"{name} must be an email address such as hello@example.com, or Pilothouse <hello@example.com>, not {value!r}"
        )
    return value


def read_integers(name: str, default: list[int], *, least: int = 0, most: int | None = None) -> list[int]:
    kind = "whole numbers, parted by commas,"
    given = read_list(name, [str(number) for number in default])
    try:
        numbers = [int(word) for word in given]
    except ValueError:
        raise _build_range_error(name, kind, ", ".join(given), least, most) from None
    if any(number < least or (most is not None and number > most) for number in numbers):
        raise _build_range_error(name, kind, ", ".join(given), least, most)
    return numbers


def read_database_url(
    name: str, default: str, *, options: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Read a Postgres URL into Django's form; its query overrides `options`."""
    url = read_text(name) or default
    if not url.startswith(("postgres://", "postgresql://")):
        raise ImproperlyConfigured(f"{name} must begin with postgres://, as in {_URL_EXAMPLE}")
    try:
        config = dict(_env.db_url_config(url))
    except ValueError:  # the exception's text holds the password
        raise ImproperlyConfigured(f"{name} is not a valid URL: it must look like {_URL_EXAMPLE}") from None
    given = config.get("OPTIONS", {})
    if not config["NAME"] and "service" not in given:
        raise ImproperlyConfigured(f"{name} names no database: it must look like {_URL_EXAMPLE}")
    config["OPTIONS"] = {
        **(options or {}),
        **{key: _check_database_option(name, key, given[key]) for key in given},
    }
    return config


def _check_database_option(variable: str, key: str, value: object) -> object:
    """Refuse options that libpq would refuse only at the first connection, or never."""
    if key in _DRIVER_FLAGS:
        if str(value).lower() not in {"true", "false"}:
            raise ImproperlyConfigured(f"{variable}: {key} must be true or false, not {value!r}")
        return str(value).lower() == "true"
    if key == "prepare_threshold" and str(value).lower() == "none":
        return None  # for poolers without prepared statements
    if key in _DRIVER_NUMBERS and not isinstance(value, int):
        raise ImproperlyConfigured(f"{variable}: {key} must be a whole number, not {value!r}")
    if key == "sslmode" and value not in _SSL_MODES:
        raise ImproperlyConfigured(
            f"{variable}: sslmode must be one of {', '.join(_SSL_MODES)}, not {value!r}"
        )
    known = {default.keyword.decode() for default in pq.Conninfo.get_defaults()}
    if key not in known | _DRIVER_FLAGS | {"prepare_threshold", "assume_role"}:
        raise ImproperlyConfigured(
            f"{variable}: Postgres has no connection option {key!r}; check its spelling"
        )
    return value


def read_service_url(name: str, schemes: tuple[str, ...]) -> str:
    """Read a URL of one of these schemes with a host, or nothing."""
    value = read_text(name).strip()
    try:
        parts = urlsplit(value)
        good = not value or (parts.scheme in schemes and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        good = False
    if not good:  # the value may hold a token, so it is not repeated
        raise ImproperlyConfigured(f"{name} must be an address such as {schemes[0]}://host:port")
    return value


def read_choice(name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = read_text(name, default)
    if value not in allowed:
        raise ImproperlyConfigured(
            f"{name} must be one of {', '.join(word or '(empty)' for word in allowed)}, not {value!r}"
        )
    return value


def read_http_url(name: str) -> str:
    """Read an http or https URL, or nothing. Errors do not show it, because it may hold a token."""
    value = read_text(name).strip()
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a URL that begins with http:// or https://") from None
    if value and (parts.scheme not in {"http", "https"} or not parts.hostname or port == 0):
        raise ImproperlyConfigured(f"{name} must be a URL that begins with http:// or https://")
    return value
