"""The references of events, error codes and metrics, read from golden files and source code without importing them."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

PRODUCT = ("config", "billing", "copilot", "linking", "diagnostics")
STATUSES = {"internal_error": 500}  # a socket's, whose errors have no status of their own
# Codes whose messages differ from place to place.
MEANINGS = {
    "conflict": "It is in a state that does not allow this.",
    "empty_message": "There is neither text nor a usable file.",
    "file_too_large": "The file is larger than the plan or the installation allows.",
    "forbidden": "You may not do this.",
    "idempotency_conflict": "The key or `run_id` was used before, with other content.",
    "invalid_request": "The request is malformed; the message names the field.",
    "limit_held": "Other running turns hold the rest of the limit. Try again when one has ended.",
    "limit_reached": "The limit of the day or week is reached; `resets_at` says when it resets.",
    "message_too_long": "The text is longer than 64,000 characters.",
    "method_not_allowed": "This address does not take this method.",
    "model_not_found": "There is no such model or tier.",
    "not_acceptable": "None of the accepted media types can be served.",
    "second_factor_required": "Staff need a session with a second factor.",
    "timeout": "The turn did not end in time; it continues.",
    "too_large": "Too many bytes.",
    "too_many_requests": "Too often. Try again after `Retry-After`.",
    "unsupported_media_type": "This media type is not understood here.",
    "unsupported_parameter": "A parameter of the OpenAI API is not supported; the message names it.",
}
REQUIRED = "\\*"
Classes = dict[str, list[ast.ClassDef]]  # by name; apps may use one name twice
METRIC_TYPES = {"Counter", "Gauge", "Histogram"}
EVENTS_HEAD = """# Events

<!-- Written by `python -m docs.generate`. -->

Everything a client is told is an event: a JSON object with `kind`, `session_id`, `cursor`, `at`, usually `turn_id`, and fields of its own. Events reach clients in three ways:

| way | how |
|---|---|
| WebSocket | `/ws/`, with a session cookie, an API key or a one-use ticket (`POST /api/v1/ws-tickets`) |
| Server-sent events | `GET /api/v1/sessions/{session_id}/stream`; `id:` is the cursor, `Last-Event-ID` resumes |
| Bot API | `GET /api/bot/v1/sessions/{session_id}/events`, as server-sent events or a long poll, with fewer fields |

Adding a kind or a field is not a breaking change: ignore what you do not know. Changing one needs a new kind.

A client opens a socket and subscribes. It gets `session.snapshot` first, then events. With a cursor it gets everything after it instead:

```json
{"kind": "session.subscribe", "session_id": "…", "cursor": "1767323045678-4", "ref": "1"}
```

## Commands of the socket

What a client may send, as JSON with `kind`. Every command takes an optional `ref`, which its answer repeats. Fields with \\* are required.

| kind | fields |
|---|---|
COMMANDS

The examples below are the golden files by which the wire format is tested.
"""
ERRORS_HEAD = """# Error codes

<!-- Written by `python -m docs.generate`. -->

## Refused requests

REST answers with `{"error": {"code", "message", "hint"?}}`, a socket with `{"kind": "error", "ref", "code", "message", "hint"?}`. `message` can be shown to people. Programs decide by `code`; messages may change.

| code | status | meaning, or an example of the message |
|---|---|---|
"""
NOTICES_HEAD = """
## Failed and limited turns

`turn.failed` carries one of these codes, and so do notices in the transcript. The last column is what the page offers.

| code | what people read | hint | action |
|---|---|---|---|
"""
CLOSES = """
## Closed sockets

| close code | means | do |
|---|---|---|
| 1009 | a frame was too large | send smaller ones |
| 4008 | too many or malformed frames | send fewer |
| 4009 | the client read too slowly | reconnect with the last cursor |
| 4401 | no valid credentials, or they were revoked | sign in again |
| 4429 | too many sockets of this account or address | close others |
"""
METRICS_HEAD = """# Metrics

<!-- Written by `python -m docs.generate`. -->

Scrape `/metrics` with `METRICS_TOKEN` or from `METRICS_ALLOWED_CIDRS`; workers in containers of their own serve theirs on `METRICS_PORT`. Gauges that could not be read are left out, never 0.
[Deploy on many hosts](../guides/deploy-large.md#watch-it) lists alerts worth having.

| metric | type | labels | meaning |
|---|---|---|---|
"""


# --- events ------------------------------------------------------------------------------------------


def render_events(root: Path) -> str:
    golden = json.loads((root / "tests" / "wire" / "events.json").read_text(encoding="utf-8"))
    meanings = tomllib.loads((root / "docs" / "events.toml").read_text(encoding="utf-8"))
    described = {kind for group in meanings.values() for kind in group}
    if described != set(golden):
        raise ValueError(
            f"docs/events.toml and tests/wire/events.json differ: {sorted(described ^ set(golden))}"
        )
    bot_kinds = set(json.loads((root / "tests" / "wire" / "bot_events.json").read_text(encoding="utf-8")))
    parts = [EVENTS_HEAD.replace("COMMANDS", "\n".join(_find_commands(root)))]
    for title, kinds in meanings.items():
        parts.append(f"## {title.capitalize()}\n")
        for kind, meaning in kinds.items():
            example = json.dumps(golden[kind], indent=2, ensure_ascii=False)
            bots = " Bots get it too." if kind in bot_kinds else ""
            parts.append(f"### {kind}\n\n{meaning}{bots}\n\n```json\n{example}\n```\n")
    return "\n".join(parts)


def _find_commands(root: Path) -> list[str]:
    """Classes whose `kind` is one literal without a default: a client names it, an event has it already."""
    classes = _classes([ast.parse(path.read_text(encoding="utf-8")) for path in _sources(root)])
    rows: dict[str, str] = {}
    for node in (node for named in classes.values() for node in named):
        for statement in node.body:
            match statement:
                case ast.AnnAssign(
                    target=ast.Name(id="kind"),
                    annotation=ast.Subscript(
                        value=ast.Name(id="Literal"), slice=ast.Constant(value=str(kind))
                    ),
                    value=None,
                ):
                    fields = [
                        name for name in _fields(classes, node) if name not in (f"`kind`{REQUIRED}", "`ref`")
                    ]
                    rows[kind] = f"| `{kind}` | {', '.join(fields)} |"
                case _:
                    pass
    return [rows[kind] for kind in sorted(rows)]


def _fields(classes: Classes, node: ast.ClassDef) -> list[str]:
    """Names of a class's fields and of those it inherits; * marks those without a default."""
    inherited = [name for base in node.bases for name in _fields_of_base(classes, base)]
    own = [
        f"`{ast.unparse(one.target)}`{'' if one.value else REQUIRED}"
        for one in node.body
        if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_")
    ]
    return list(dict.fromkeys([*own, *inherited]))


def _fields_of_base(classes: Classes, base: ast.expr) -> list[str]:
    named = classes.get(base.id, ()) if isinstance(base, ast.Name) else ()
    return [name for node in named for name in _fields(classes, node)]


# --- error codes -------------------------------------------------------------------------------------


def render_errors(root: Path) -> str:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in _sources(root)]
    refusals = _find_refusals(trees)
    rows = [f"| `{code}` | {status} | {message} |" for code, (status, message) in sorted(refusals.items())]
    notices = [
        f"| `{code}` | {' | '.join(_text(part) for part in _values(call))} |"
        for code, call in _find_notices(trees)
    ]
    return ERRORS_HEAD + "\n".join(rows) + "\n" + NOTICES_HEAD + "\n".join(notices) + "\n" + CLOSES


def _find_refusals(trees: list[ast.Module]) -> dict[str, tuple[int, str]]:
    """Codes of exception classes, those given where one is raised (`code="…"`), and tables from code to status and message.

    Of several messages of a code the shortest stands, so that moving code between files changes nothing.
    """
    classes = _classes(trees)
    candidates: dict[str, list[tuple[int, str]]] = {}
    for one in (one for named in classes.values() for one in named):
        status, code = _status_of(classes, one), _own(one, "default_code")
        if status and code:
            candidates.setdefault(str(code), []).append((status, _class_message(one)))
        for given, message in _codes_given(one, "__init__") if status else ():
            told = _class_message(one) if message == "…" else message
            candidates.setdefault(given, []).append((status, told))
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            status = _status(classes, name)
            for given, message in _codes_given(node, name) if status else ():
                candidates.setdefault(given, []).append((status, message))
        elif isinstance(node, ast.Dict):
            for given, entry in _table(node).items():
                candidates.setdefault(given, []).append(entry)
    return {code: _choose(code, found) for code, found in candidates.items()}


def _choose(code: str, found: list[tuple[int, str]]) -> tuple[int, str]:
    status = STATUSES.get(code, min(status for status, _ in found))
    messages = [message for _, message in found if message not in ("", "…")]
    if code in MEANINGS:
        return status, MEANINGS[code]
    return status, min(
        messages, key=lambda message: (len(message), message), default=HTTPStatus(status).phrase
    )


def _codes_given(within: ast.AST, function: str) -> Iterator[tuple[str, str]]:
    """Codes and messages of calls `function(message, code="…")`, also where the message is a variable of the same body."""
    nodes = list(ast.walk(within))
    variables = {
        target.id: _text(node.value)
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in nodes:
        if not isinstance(call, ast.Call) or function != (
            getattr(call.func, "attr", "") or getattr(call.func, "id", "")
        ):
            continue
        first = call.args[0] if call.args else ast.Constant("")
        message = variables.get(first.id, "") if isinstance(first, ast.Name) else _text(first)
        for keyword in call.keywords:
            if keyword.arg == "code":
                either = keyword.value
                for code in (either.body, either.orelse) if isinstance(either, ast.IfExp) else (either,):
                    if isinstance(code, ast.Constant) and isinstance(code.value, str) and code.value:
                        yield code.value, message


def _table(node: ast.Dict) -> dict[str, tuple[int, str]]:
    """A dictionary `{"code": (status, message)}`."""
    found: dict[str, tuple[int, str]] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        match key, value:
            case ast.Constant(value=str(code)), ast.Tuple(
                elts=[ast.Constant(value=int(status)), message]
            ) if 400 <= status < 600:
                found[code] = (status, _text(message))
            case _:
                pass
    return found


def _status(classes: Classes, name: str) -> int:
    """The HTTP status of an exception, also inherited; 0 when it has none."""
    return next((status for node in classes.get(name, ()) if (status := _status_of(classes, node))), 0)


def _status_of(classes: Classes, node: ast.ClassDef) -> int:
    own = _own(node, "status")
    if isinstance(own, int):
        return own
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id != node.name]
    return next((status for base in bases if (status := _status(classes, base))), 0)


def _own(node: ast.ClassDef, attribute: str) -> object:
    for statement in node.body:
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant) and any(
            isinstance(target, ast.Name) and target.id == attribute for target in targets
        ):
            return value.value
    return None


def _class_message(node: ast.ClassDef) -> str:
    """Return the message that its constructor passes on, or else its docstring."""
    for call in (inner for inner in ast.walk(node) if isinstance(inner, ast.Call)):
        if (
            getattr(call.func, "attr", "") == "__init__"
            and call.args
            and _text(call.args[0]) not in ("", "…")
        ):
            return _text(call.args[0])
    for default in (inner for inner in ast.walk(node) if isinstance(inner, ast.arguments)):
        for value in (*default.defaults, *default.kw_defaults):
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and " " in value.value:
                return value.value
    return (ast.get_docstring(node) or "").split("\n")[0]


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _find_notices(trees: list[ast.Module]) -> Iterator[tuple[str, ast.Call]]:
    for tree in trees:
        for node in tree.body:
            target = getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == "NOTICES" and isinstance(node, ast.AnnAssign):
                assert isinstance(node.value, ast.Dict)
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Call):
                        yield str(key.value), value


# --- metrics -----------------------------------------------------------------------------------------


def render_metrics(root: Path) -> str:
    found: dict[str, str] = {}
    for path in _sources(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            row = _metric(node, seen=path.name == "metrics.py")
            if row is not None:
                found[row[0]] = f"| `{row[0]}` | {row[1]} | {row[2]} | {row[3]} |"
    return METRICS_HEAD + "\n".join(found[name] for name in sorted(found)) + "\n"


def _metric(node: ast.AST, *, seen: bool) -> tuple[str, str, str, str] | None:
    """A counter, gauge or histogram of a process, or a gauge that is computed at a scrape (name, words, label, values)."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if node.func.id in METRIC_TYPES and len(words) >= 2 and words[0].startswith("pilothouse_"):
        labels = [ast.literal_eval(arg) for arg in node.args if isinstance(arg, ast.List)]
        return words[0], node.func.id.lower(), ", ".join(f"`{one}`" for one in (labels or [[]])[0]), words[1]
    if seen and len(words) == 3 and len(node.args) == 4:
        return f"pilothouse_{words[0]}", "gauge", f"`{words[2]}`" if words[2] else "", words[1]
    return None


# --- source ------------------------------------------------------------------------------------------


def _sources(root: Path) -> Iterator[Path]:
    for app in PRODUCT:
        yield from sorted(path for path in (root / app).rglob("*.py") if "migrations" not in path.parts)


def _classes(trees: list[ast.Module]) -> Classes:
    found: Classes = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def _text(node: ast.expr) -> str:
    """A string as people read it; `…` stands for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
        case ast.JoinedStr(values=parts):
            filled = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            return _text(ast.Constant(filled))
        case ast.Call(args=[first, *_]):
            return _text(first)
        case ast.BinOp(left=left, op=ast.Mod()):
            return _text(left)
        case _:
            return "…"
