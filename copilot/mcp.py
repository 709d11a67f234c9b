"""MCP servers: whose they are, how they are reached, and how they fared; the only writer of their table (A28)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypedDict, get_args
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone
from yarl import URL

from config.core import accounts
from copilot import addresses, sealing
from copilot.errors import Conflict, InvalidRequest, NotFound
from copilot.events import JSON
from copilot.models import McpServer
from copilot.permissions import Permissions
from copilot.rows import storable

MAX_SERVERS = 20  # per owner: all of them are asked at the start of a turn
MAX_SECRETS = 20
MAX_SECRET = 4_000
MAX_WORDS = 50
MAX_URL = 2_000
FIRST_WAIT = timedelta(minutes=1)
LONGEST_WAIT = timedelta(minutes=15)
ERROR_CHARACTERS = 500
UNREADABLE = "Its secrets can no longer be read: the installation's key was changed. Enter them again."

Transport = Literal["http", "stdio"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")  # what a header can carry
# Written by the transport itself; another value would break it or smuggle a second request in.
_OUR_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept", "accept-encoding"}
)
_OUR_VARIABLES = frozenset(
    {
        *("path", "home", "lang", "ifs", "env", "bash_env", "bashopts", "shellopts", "ps4", "prompt_command"),
        *("node_options", "node_path", "perl5lib", "perl5opt", "perllib", "rubylib", "rubyopt", "lua_path"),
        *("java_tool_options", "_java_options", "jdk_java_options", "gconv_path", "glibc_tunables"),
        *("git_ssh", "git_ssh_command", "git_proxy_command", "git_external_diff", "git_exec_path"),
    }
)
_LOADER_PREFIXES = ("LD_", "DYLD_", "PYTHON", "BASH_FUNC")


class Listed(TypedDict):
    """One tool from the server's last list: for people, and for judging a call where no server is at hand."""

    name: str
    description: str
    parameters: dict[str, JSON]
    read_only: bool  # it says so itself
    left_out: str  # why models are not offered it, or nothing


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What somebody wants a server to be. Absent secrets stay as they are, while the origin does."""

    name: str
    transport: Transport = "http"
    url: str = ""
    command: tuple[str, ...] = ()
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    trusted: bool = False
    never_ask: tuple[str, ...] = ()
    enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server as a turn uses it."""

    id: UUID
    owner_id: int | None
    name: str
    transport: Transport
    url: str = ""
    command: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    trusted: bool = False
    never_ask: frozenset[str] = frozenset()
    version: int = 1
    failures: int = 0
    tools: tuple[Listed, ...] = ()  # as it listed them last
    absent: str = ""  # why it is not tried now, or nothing

    @property
    def key(self) -> tuple[int | None, UUID, int]:
        """Two users' servers of one name are two, and a changed one is another (A28.2)."""
        return self.owner_id, self.id, self.version

    def secret_values(self) -> list[str]:
        """Whole values, and the credential after a scheme such as Bearer."""
        values = list(self.secrets.values())
        return values + [value.split()[-1] for value in values if len(value.split()) > 1]

    def own_secret_values(self) -> list[str]:
        """Those of a user, which are masked in that user's turns alone."""
        return self.secret_values() if self.owner_id is not None else []


# --- writing -----------------------------------------------------------------------------------------


def add(owner_id: int | None, draft: Draft) -> McpServer:
    """Make a server of a user's, or with no owner one of everybody's."""
    check(owner_id, draft)
    if McpServer.objects.filter(owner_id=owner_id).count() >= MAX_SERVERS:
        raise Conflict(f"There are {MAX_SERVERS} servers already. Remove one first.", code="too_many_servers")
    server = McpServer(owner_id=owner_id, **_fields(draft), secrets=_sealed(draft.secrets or {}))
    _saved_once(server)
    return server


def change(owner_id: int | None, server_id: UUID, draft: Draft) -> McpServer:
    """Everything as the draft says; the next turn connects anew (A28.2).

    Kept secrets were given to one origin: at another one the server starts without them, and without what it listed.
    """
    check(owner_id, draft)
    with transaction.atomic():
        server = _locked(owner_id, server_id)
        before = _origin(server)
        for name, value in _fields(draft).items():
            setattr(server, name, value)
        if _origin(server) != before:
            server.secrets, server.tools, server.listed_at = "", [], None
        if draft.secrets is not None:
            server.secrets = _sealed(draft.secrets)
        server.version += 1
        server.failures, server.retry_at, server.last_error = 0, None, ""
        _saved_once(server)
    return server


def remove(owner_id: int | None, server_id: UUID) -> None:
    deleted, _ = McpServer.objects.filter(pk=server_id, owner_id=owner_id).delete()
    if not deleted:
        raise NotFound


def failed(server: Server, error: str) -> None:
    """Not tried again for a minute, then two, up to a quarter of an hour (A28.3)."""
    wait = min(FIRST_WAIT * 2 ** min(server.failures, 10), LONGEST_WAIT)
    McpServer.objects.filter(pk=server.id, version=server.version, failures=server.failures).update(
        failures=F("failures") + 1, retry_at=Now() + wait, last_error=storable(error)[:ERROR_CHARACTERS]
    )


def listed(server: Server, tools: Sequence[Listed]) -> None:
    """It answered: nothing stands against it any more."""
    McpServer.objects.filter(pk=server.id, version=server.version).update(
        failures=0, retry_at=None, last_error="", tools=list(tools), listed_at=Now()
    )


# --- reading -----------------------------------------------------------------------------------------


def usable(user_id: int, permissions: Permissions) -> tuple[Server, ...]:
    """The servers a turn of this user may use, those that are not tried now included (A28.6)."""
    rows = _seen_by(user_id).filter(enabled=True).order_by("name", "id")
    return tuple(_server(row) for row in rows if _permitted(row, permissions))


def seen_by(user_id: int) -> list[McpServer]:
    """A user's own servers, then everybody's that are switched on."""
    own = Q(owner_id=user_id) | Q(enabled=True)
    return list(_seen_by(user_id).filter(own).order_by(F("owner_id").asc(nulls_last=True), "name", "id"))


def own(owner_id: int | None, server_id: UUID) -> McpServer:
    """Foreign, unknown and, for users, everybody's look the same."""
    row = McpServer.objects.filter(pk=server_id, owner_id=owner_id).first()
    if row is None:
        raise NotFound
    return row


def drafted(row: McpServer) -> Draft:
    """The row as it is, for those who change a part of it."""
    return Draft(
        name=row.name,
        transport=_transport(row),
        url=row.url,
        command=tuple(row.command),
        trusted=row.trusted,
        never_ask=tuple(row.never_ask),
        enabled=row.enabled,
    )


def as_used(row: McpServer) -> Server:
    """To be tried at once, whatever became of it last time."""
    return _server(row, waits=False)


def secret_names(row: McpServer) -> list[str]:
    """Which secrets there are; what they are is never shown again (A28.1)."""
    try:
        return sorted(_unsealed(row.secrets))
    except sealing.Unreadable:
        return []


def _seen_by(user_id: int) -> QuerySet[McpServer]:
    return McpServer.objects.filter(Q(owner_id=user_id) | Q(owner_id=None))


def _permitted(row: McpServer, permissions: Permissions) -> bool:
    allowed = permissions.mcp_servers
    return (
        permissions.network
        and (allowed is None or row.name in allowed)
        and (row.owner_id is None or permissions.own_credentials)
    )


def _transport(row: McpServer) -> Transport:
    return "stdio" if row.transport == McpServer.Transport.STDIO else "http"


def _server(row: McpServer, *, waits: bool = True) -> Server:
    absent = ""
    secrets: dict[str, str] = {}
    if waits and row.retry_at is not None and row.retry_at > timezone.now():
        absent = row.last_error or "It is tried again later."
    try:
        secrets = _unsealed(row.secrets)
    except sealing.Unreadable:
        absent = UNREADABLE
    if row.transport == McpServer.Transport.STDIO:
        absent = command_problem(row.command) or absent
    return Server(
        id=row.pk,
        owner_id=row.owner_id,
        name=row.name,
        transport=_transport(row),
        url=row.url,
        command=tuple(row.command),
        secrets=secrets,
        trusted=row.trusted,
        never_ask=frozenset(row.never_ask),
        version=row.version,
        failures=row.failures,
        tools=tuple(row.tools),
        absent=absent,
    )


# --- checks ------------------------------------------------------------------------------------------


def check(owner_id: int | None, draft: Draft) -> None:
    """Raises what is wrong with it, in words for whoever wrote it."""
    if not _NAME.fullmatch(draft.name):
        raise InvalidRequest(
            "name: 1 to 40 letters, digits, hyphens and underscores; the first a letter or a digit."
        )
    if draft.transport not in get_args(Transport):
        raise InvalidRequest("transport: http or stdio.")
    if owner_id is not None and (draft.transport != "http" or draft.trusted or draft.never_ask):
        raise InvalidRequest("A user's server is reached over http, and its tools always ask.")
    if draft.transport == "http":
        _check_url(draft.url, public=owner_id is not None)
        _check_secrets(draft.secrets or {}, names=_HEADER, taken=_OUR_HEADERS)
    else:
        _check_command(draft.command)
        _check_variables(draft.secrets or {})
        if draft.enabled and (problem := command_problem(draft.command)):
            raise InvalidRequest(f"command: {problem}", code="command_not_allowed")


def _check_url(text: str, *, public: bool) -> None:
    """Refuse what can be told without the network. Whoever owns a name decides how long it takes to resolve, so that
    is left to the connection, which checks every address of the name anyway."""
    if len(text) > MAX_URL:
        raise InvalidRequest(f"url: at most {MAX_URL:,} characters.")
    try:
        url = URL(text)
        ports = settings.WEB_FETCH_PORTS if public else [url.port or 0]
        objection = addresses.objection(url, ports)
    except ValueError as problem:
        raise InvalidRequest("url: this is not a URL.", code="invalid_url") from problem
    local_is_fine = not public and objection == ("address_refused", addresses.NOT_PUBLIC)
    if objection is not None and not local_is_fine:
        raise InvalidRequest(f"url: {objection[1]}", code=objection[0])
    if not public:
        return
    if address := addresses.numeric_address(url.host or ""):
        if not addresses.is_public(address):
            raise InvalidRequest(f"url: {addresses.NOT_PUBLIC}", code="address_refused")
    elif not addresses.is_possible_name(url.host or ""):
        raise InvalidRequest("url: there is no host of this name.", code="unreachable")


def _check_command(command: Sequence[str]) -> None:
    if not command or not command[0] or len(command) > MAX_WORDS or any("\x00" in word for word in command):
        raise InvalidRequest("command: a program and its arguments, one after the other.")


def command_problem(command: Sequence[str]) -> str:
    """Why workers do not start a command, or nothing. Programs of the environment's list run alone, never as root."""
    if tuple(command) not in settings.MCP_STDIO_COMMANDS:
        return "Workers start only commands listed in MCP_STDIO_COMMANDS, with exactly these arguments."
    return accounts.account_problem(settings.SANDBOX_UID)


def _check_variables(variables: Mapping[str, str]) -> None:
    """Refuse those that make a listed program load or run something else."""
    _check_secrets(variables, names=_VARIABLE, taken=_OUR_VARIABLES)
    for name in variables:
        if name.upper().startswith(_LOADER_PREFIXES):
            raise InvalidRequest(f"secrets: {name[:100]!r} cannot be set.")


def _check_secrets(secrets: Mapping[str, str], *, names: re.Pattern[str], taken: frozenset[str]) -> None:
    if len(secrets) > MAX_SECRETS:
        raise InvalidRequest(f"secrets: at most {MAX_SECRETS}.")
    for name, value in secrets.items():
        if not names.fullmatch(name) or name.lower() in taken:
            raise InvalidRequest(f"secrets: {name[:100]!r} cannot be set.")
        if not value or len(value) > MAX_SECRET or not _VALUE.fullmatch(value):
            raise InvalidRequest(
                f"secrets: the value of {name} must be 1 to {MAX_SECRET:,} printable characters."
            )


# --- rows --------------------------------------------------------------------------------------------


class _Fields(TypedDict):
    name: str
    transport: str
    url: str
    command: list[str]
    trusted: bool
    never_ask: list[str]
    enabled: bool


def _fields(draft: Draft) -> _Fields:
    http = draft.transport == "http"
    return {
        "name": draft.name,
        "transport": draft.transport,
        "url": draft.url if http else "",
        "command": [] if http else list(draft.command),
        "trusted": draft.trusted,
        "never_ask": _unique(draft.never_ask),
        "enabled": draft.enabled,
    }


def _origin(row: McpServer) -> tuple[str, ...]:
    """The other side that gets the secrets: scheme, host and port of a URL, or the whole command."""
    if row.transport == McpServer.Transport.STDIO:
        return ("stdio", *row.command)
    url = URL(row.url)
    return "http", url.scheme, (url.raw_host or "").rstrip("."), str(url.port)


def _unique(names: Iterable[str]) -> list[str]:
    return sorted({name.strip() for name in names if name.strip()})


def _locked(owner_id: int | None, server_id: UUID) -> McpServer:
    row = McpServer.objects.select_for_update().filter(pk=server_id, owner_id=owner_id).first()
    if row is None:
        raise NotFound
    return row


def _saved_once(server: McpServer) -> None:
    try:
        with transaction.atomic():
            server.save()
    except IntegrityError as problem:
        raise Conflict(f"There is a server named {server.name} already.", code="name_taken") from problem


def _sealed(secrets: Mapping[str, str]) -> str:
    return sealing.seal(msgspec.json.encode(dict(secrets)).decode()) if secrets else ""


def _unsealed(sealed: str) -> dict[str, str]:
    return msgspec.json.decode(sealing.unseal(sealed), type=dict[str, str]) if sealed else {}


def erase(owner_id: int) -> int:
    """Of an account that goes, secrets included (S17)."""
    removed, _ = McpServer.objects.filter(owner=owner_id).delete()
    return removed
