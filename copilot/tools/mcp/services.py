"""Create, change, check and read MCP servers. The only writer of their table."""

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

from config.core import encryption, privileges, url_safety
from config.core.errors import Conflict, InvalidRequest, NotFound
from config.core.json_values import JSON
from config.core.text import make_storable
from copilot.chat.permissions import Permissions
from copilot.models import McpServer

MAX_SERVERS = 20  # per owner: a turn connects to all of them when it starts
MAX_SECRETS = 20
MAX_SECRET_CHARACTERS = 4_000
MAX_COMMAND_WORDS = 50
MAX_URL_CHARACTERS = 2_000
FIRST_RETRY_DELAY = timedelta(minutes=1)
MAX_RETRY_DELAY = timedelta(minutes=15)
MAX_ERROR_CHARACTERS = 500
SECRETS_UNREADABLE_MESSAGE = (
    "Its secrets can't be read because the encryption key has changed. Enter them again."
)

Transport = Literal["http", "stdio"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")  # characters allowed in a header
# Headers written by the transport itself; another value would break it or smuggle in a second request.
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


class ListedTool(TypedDict):
    """One tool from the server's last list: for people, and for checking calls without the server."""

    name: str
    description: str
    parameters: dict[str, JSON]
    read_only: bool  # according to the server
    left_out: str  # why models are not offered it, or nothing


@dataclass(frozen=True, kw_only=True)
class McpServerDraft:
    """The wanted configuration of a server. Secrets left out stay as they are, unless the origin changes."""

    name: str
    transport: Transport = "http"
    url: str = ""
    command: tuple[str, ...] = ()
    secrets: Mapping[str, str] | None = field(default=None, repr=False)
    trusted: bool = False
    never_ask: tuple[str, ...] = ()
    enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class McpServerConfig:
    """A server as a turn uses it."""

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
    tools: tuple[ListedTool, ...] = ()  # as it listed them last
    absent: str = ""  # why turns skip it for now, or nothing

    @property
    def pool_key(self) -> tuple[int | None, UUID, int]:
        """Return the key of its connection: servers of different owners or versions never share one."""
        return self.owner_id, self.id, self.version

    def secret_values(self) -> list[str]:
        """Return whole values, and the credential after a scheme such as Bearer."""
        values = list(self.secrets.values())
        return values + [value.split()[-1] for value in values if len(value.split()) > 1]

    def own_secret_values(self) -> list[str]:
        """Return the secrets of a user's server, which are redacted in that user's turns only."""
        return self.secret_values() if self.owner_id is not None else []


# --- Write -------------------------------------------------------------------------------------------


def create_server(owner_id: int | None, draft: McpServerDraft) -> McpServer:
    check_draft(owner_id, draft)
    if McpServer.objects.filter(owner_id=owner_id).count() >= MAX_SERVERS:
        raise Conflict(
            f"You can have up to {MAX_SERVERS} servers. Remove one first.", code="too_many_servers"
        )
    server = McpServer(
        owner_id=owner_id, **_draft_fields(draft), secrets=_encrypt_secrets(draft.secrets or {})
    )
    _save_unique(server)
    return server


def update_server(owner_id: int | None, server_id: UUID, draft: McpServerDraft) -> McpServer:
    """Apply the draft; the next turn reconnects.

    Stored secrets were meant for one origin: at a new origin the server starts without them and without its
    listed tools.
    """
    check_draft(owner_id, draft)
    with transaction.atomic():
        server = _lock_server(owner_id, server_id)
        before = _server_origin(server)
        for name, value in _draft_fields(draft).items():
            setattr(server, name, value)
        if _server_origin(server) != before:
            server.secrets, server.tools, server.listed_at = "", [], None
        if draft.secrets is not None:
            server.secrets = _encrypt_secrets(draft.secrets)
        server.version += 1
        server.failures, server.retry_at, server.last_error = 0, None, ""
        _save_unique(server)
    return server


def delete_server(owner_id: int | None, server_id: UUID) -> None:
    deleted, _ = McpServer.objects.filter(pk=server_id, owner_id=owner_id).delete()
    if not deleted:
        raise NotFound


def record_failure(server: McpServerConfig, error: str) -> None:
    """Back off: do not try again for a minute, then two, up to a quarter of an hour."""
    wait = min(FIRST_RETRY_DELAY * 2 ** min(server.failures, 10), MAX_RETRY_DELAY)
    McpServer.objects.filter(pk=server.id, version=server.version, failures=server.failures).update(
        failures=F("failures") + 1,
        retry_at=Now() + wait,
        last_error=make_storable(error)[:MAX_ERROR_CHARACTERS],
    )


def record_tools(server: McpServerConfig, tools: Sequence[ListedTool]) -> None:
    McpServer.objects.filter(pk=server.id, version=server.version).update(
        failures=0, retry_at=None, last_error="", tools=list(tools), listed_at=Now()
    )


# --- Read --------------------------------------------------------------------------------------------


def list_usable_servers(user_id: int, permissions: Permissions) -> tuple[McpServerConfig, ...]:
    """Return the servers a turn of this user may use, including those that are backing off."""
    rows = _visible_servers(user_id).filter(enabled=True).order_by("name", "id")
    return tuple(_build_config(row) for row in rows if _is_permitted(row, permissions))


def list_visible_servers(user_id: int) -> list[McpServer]:
    own = Q(owner_id=user_id) | Q(enabled=True)
    return list(
        _visible_servers(user_id).filter(own).order_by(F("owner_id").asc(nulls_last=True), "name", "id")
    )


def get_own_server(owner_id: int | None, server_id: UUID) -> McpServer:
    """Return a server of this owner. Any other server is reported as not found."""
    row = McpServer.objects.filter(pk=server_id, owner_id=owner_id).first()
    if row is None:
        raise NotFound
    return row


def draft_from_server(row: McpServer) -> McpServerDraft:
    return McpServerDraft(
        name=row.name,
        transport=_get_transport(row),
        url=row.url,
        command=tuple(row.command),
        trusted=row.trusted,
        never_ask=tuple(row.never_ask),
        enabled=row.enabled,
    )


def build_trial_config(row: McpServer) -> McpServerConfig:
    """Build a configuration that ignores the back-off."""
    return _build_config(row, respect_back_off=False)


def list_secret_names(row: McpServer) -> list[str]:
    """Return the names of the secrets; their values are never shown again."""
    try:
        return sorted(_decrypt_secrets(row.secrets))
    except encryption.DecryptionFailed:
        return []


def _visible_servers(user_id: int) -> QuerySet[McpServer]:
    return McpServer.objects.filter(Q(owner_id=user_id) | Q(owner_id=None))


def _is_permitted(row: McpServer, permissions: Permissions) -> bool:
    allowed = permissions.mcp_servers
    return (
        permissions.network
        and (allowed is None or row.name in allowed)
        and (row.owner_id is None or permissions.own_credentials)
    )


def _get_transport(row: McpServer) -> Transport:
    return "stdio" if row.transport == McpServer.Transport.STDIO else "http"


def _build_config(row: McpServer, *, respect_back_off: bool = True) -> McpServerConfig:
    absent = ""
    secrets: dict[str, str] = {}
    if respect_back_off and row.retry_at is not None and row.retry_at > timezone.now():
        absent = row.last_error or "It will be tried again later."
    try:
        secrets = _decrypt_secrets(row.secrets)
    except encryption.DecryptionFailed:
        absent = SECRETS_UNREADABLE_MESSAGE
    if row.transport == McpServer.Transport.STDIO:
        absent = find_command_problem(row.command) or absent
    return McpServerConfig(
        id=row.pk,
        owner_id=row.owner_id,
        name=row.name,
        transport=_get_transport(row),
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


# --- Checks ------------------------------------------------------------------------------------------


def check_draft(owner_id: int | None, draft: McpServerDraft) -> None:
    if not _NAME.fullmatch(draft.name):
        raise InvalidRequest("name: Use 1–40 letters, digits, - or _, starting with a letter or digit.")
    if draft.transport not in get_args(Transport):
        raise InvalidRequest("transport: http or stdio.")
    if owner_id is not None and (draft.transport != "http" or draft.trusted or draft.never_ask):
        raise InvalidRequest("Your own servers must use http, and their tools always need approval.")
    if draft.transport == "http":
        _check_url(draft.url, public=owner_id is not None)
        _check_secrets(draft.secrets or {}, names=_HEADER, taken=_OUR_HEADERS)
    else:
        _check_command(draft.command)
        _check_variables(draft.secrets or {})
        if draft.enabled and (problem := find_command_problem(draft.command)):
            raise InvalidRequest(f"command: {problem}", code="command_not_allowed")


def _check_url(text: str, *, public: bool) -> None:
    """Refuse what can be judged without the network.

    Resolving a name may take as long as its owner likes, so that is left to the connection, which checks
    every address of the name anyway.
    """
    if len(text) > MAX_URL_CHARACTERS:
        raise InvalidRequest(f"url: at most {MAX_URL_CHARACTERS:,} characters.")
    try:
        url = URL(text)
        ports = settings.WEB_FETCH_PORTS if public else [url.port or 0]
        objection = url_safety.find_url_problem(url, ports)
    except ValueError as problem:
        raise InvalidRequest("url: this is not a URL.", code="invalid_url") from problem
    local_is_fine = not public and objection == ("address_refused", url_safety.NOT_PUBLIC_MESSAGE)
    if objection is not None and not local_is_fine:
        raise InvalidRequest(f"url: {objection[1]}", code=objection[0])
    if not public:
        return
    if address := url_safety.parse_numeric_address(url.host or ""):
        if not url_safety.is_public_address(address):
            raise InvalidRequest(f"url: {url_safety.NOT_PUBLIC_MESSAGE}", code="address_refused")
    elif not url_safety.is_valid_hostname(url.host or ""):
        raise InvalidRequest("url: this is not a valid host name.", code="unreachable")


def _check_command(command: Sequence[str]) -> None:
    if (
        not command
        or not command[0]
        or len(command) > MAX_COMMAND_WORDS
        or any("\x00" in word for word in command)
    ):
        raise InvalidRequest("command: enter a program and its arguments.")


def find_command_problem(command: Sequence[str]) -> str:
    """Return why workers would not start a command, or nothing.

    Only commands listed in MCP_STDIO_COMMANDS run, and never as root.
    """
    if tuple(command) not in settings.MCP_STDIO_COMMANDS:
        return "Only commands listed in MCP_STDIO_COMMANDS can run, with exactly the listed arguments."
    return privileges.find_account_problem(settings.SANDBOX_UID)


def _check_variables(variables: Mapping[str, str]) -> None:
    """Refuse variables that make a listed program load or run something else."""
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
        if not value or len(value) > MAX_SECRET_CHARACTERS or not _VALUE.fullmatch(value):
            raise InvalidRequest(
                f"secrets: the value of {name} must be 1 to {MAX_SECRET_CHARACTERS:,} printable characters."
            )


# --- Rows --------------------------------------------------------------------------------------------


class _ServerFields(TypedDict):
    name: str
    transport: str
    url: str
    command: list[str]
    trusted: bool
    never_ask: list[str]
    enabled: bool


def _draft_fields(draft: McpServerDraft) -> _ServerFields:
    http = draft.transport == "http"
    return {
        "name": draft.name,
        "transport": draft.transport,
        "url": draft.url if http else "",
        "command": [] if http else list(draft.command),
        "trusted": draft.trusted,
        "never_ask": _unique_names(draft.never_ask),
        "enabled": draft.enabled,
    }


def _server_origin(row: McpServer) -> tuple[str, ...]:
    """Return who gets the secrets: scheme, host and port of a URL, or the whole command."""
    if row.transport == McpServer.Transport.STDIO:
        return ("stdio", *row.command)
    url = URL(row.url)
    return "http", url.scheme, (url.raw_host or "").rstrip("."), str(url.port)


def _unique_names(names: Iterable[str]) -> list[str]:
    return sorted({name.strip() for name in names if name.strip()})


def _lock_server(owner_id: int | None, server_id: UUID) -> McpServer:
    row = McpServer.objects.select_for_update().filter(pk=server_id, owner_id=owner_id).first()
    if row is None:
        raise NotFound
    return row


def _save_unique(server: McpServer) -> None:
    try:
        with transaction.atomic():
            server.save()
    except IntegrityError as problem:
        raise Conflict(
            f"You already have a server named {server.name}.", code="name_taken", field="name"
        ) from problem


def _encrypt_secrets(secrets: Mapping[str, str]) -> str:
    return encryption.encrypt_text(msgspec.json.encode(dict(secrets)).decode()) if secrets else ""


def _decrypt_secrets(encrypted: str) -> dict[str, str]:
    return msgspec.json.decode(encryption.decrypt_text(encrypted), type=dict[str, str]) if encrypted else {}


def erase_mcp_servers(owner_id: int) -> int:
    removed, _ = McpServer.objects.filter(owner=owner_id).delete()
    return removed
