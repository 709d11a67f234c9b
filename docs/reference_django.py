"""The references of REST calls and management commands, from the OpenAPI document and the commands' own parsers."""

from __future__ import annotations

import argparse
import re
from typing import Any

from django.core.management import get_commands, load_command_class
from drf_spectacular.generators import SchemaGenerator

OURS = ("billing", "copilot", "linking", "diagnostics")
REQUIRED = "\\*"
METHODS = ("get", "post", "put", "patch", "delete")
_SCOPE = re.compile(r"scopes? (`[^.]*`)")
REST_HEAD = """# REST API

<!-- Written by `python -m docs.generate`. -->

A running site serves the complete document at `/api/schema` and a viewer at `/api/docs`, with every field of every answer. This page is the overview.

- **Credentials.** `Authorization: Bearer ph_user_…` (an API key with scopes; *Settings → API keys*, or `manage.py create_api_key`), or a browser's session cookie with a CSRF token. Calls
  under `/api/bot/v1/` take a bot key, `ph_bot_…`, and nothing else.
- **Errors** have one form: `{"error": {"code", "message", "hint"?}}`. [Error codes](errors.md) lists them.
- **Repeating is safe** where a call takes `run_id` or `Idempotency-Key`: the same one again returns the first outcome.
- **429 and 503** name in `Retry-After` when to try again.

Fields with \\* are required.
"""
COMMANDS_HEAD = """# Commands

<!-- Written by `python -m docs.generate`. -->

Run them with `.venv/bin/python manage.py <command>`. While `make run` runs in the same directory, they find its servers by themselves; elsewhere they read the environment. Django's own
commands (`migrate`, `collectstatic`, `check --deploy`, `createsuperuser`, …) work as usual.
"""


def render_rest() -> str:
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]
    schema: dict[str, Any] = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    groups: dict[str, list[str]] = {}
    for path, operations in sorted(schema["paths"].items()):
        for method in METHODS:
            if method in operations:
                groups.setdefault(_group(path), []).append(_entry(schema, method, path, operations[method]))
    parts = [REST_HEAD]
    for title, entries in groups.items():
        parts += [f"## {title}\n", *entries, ""]
    return "\n".join(parts)


def _group(path: str) -> str:
    """`/api/v1/sessions/{id}/stop` belongs to `/api/v1/sessions`."""
    parts = path.strip("/").split("/")
    depth = 3 if parts[0] == "api" else 1
    return "/" + "/".join(parts[: depth if len(parts) >= depth else len(parts)])


def _entry(schema: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    """One call as an item of a list: what it does, then what it takes and answers."""
    scope = _SCOPE.search(operation.get("description", ""))
    query = [f"`{one['name']}`" for one in operation.get("parameters", []) if one["in"] == "query"]
    statuses = [status for status in operation["responses"] if status < "300"]
    facts = {
        "scope": scope[1] if scope else "",
        "body": ", ".join(_fields(schema, operation)),
        "query": ", ".join(query),
        "answers": ", ".join(statuses),
    }
    told = " · ".join(f"{name} {value}" for name, value in facts.items() if value)
    return f"- `{method.upper()} {path}`<br>{operation.get('summary', '')}.<br><small>{told}</small>"


def _fields(schema: dict[str, Any], operation: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return [f"{kind}" for kind in content]
    body = _resolve(schema, content["application/json"].get("schema", {}))
    variants = [_resolve(schema, one) for one in body.get("oneOf") or body.get("anyOf") or [body]]
    names: dict[str, bool] = {}
    for variant in variants:
        for name in variant.get("properties", {}):
            required = name in variant.get("required", ())
            names[name] = names.get(name, True) and required and len(variants) == 1
    return [f"`{name}`{REQUIRED if required else ''}" for name, required in names.items()]


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema["components"]["schemas"][node["$ref"].rsplit("/", 1)[-1]]
    return node


def render_commands() -> str:
    parts = [COMMANDS_HEAD]
    for name, app in sorted(get_commands().items()):
        if app in OURS:
            command = load_command_class(app, name)
            parser = command.create_parser("manage.py", name)
            parts += [f"## {name}\n", f"{command.help}\n", *_arguments(parser)]
    return "\n".join(parts)


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    shared = set(argparse.ArgumentParser()._option_string_actions) | {
        "--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--no-color", "--force-color", "--skip-checks"
    }  # fmt: skip
    own = [action for action in parser._actions if not shared & set(action.option_strings)]
    if not own:
        return []
    rows = [f"| `{_name(action)}` | {_help(action)} |" for action in own]
    return ["| argument | meaning |", "|---|---|", *rows, ""]


def _name(action: argparse.Action) -> str:
    name = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
    takes_value = action.option_strings and action.nargs != 0
    return f"{name} …" if takes_value else name


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("|", "\\|").strip()
    choices = ", ".join(f"`{one}`" for one in action.choices) if action.choices else ""
    required = "required" if action.required and action.option_strings else ""
    return ". ".join(part.rstrip(".") for part in (text, choices, required) if part)
