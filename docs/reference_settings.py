"""The reference of settings: types, bounds and defaults from the code, meanings from docs/settings.toml."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PRODUCT = ("config", "billing", "copilot", "linking", "diagnostics")
UNITS = (("GB", 2**30), ("MB", 2**20), ("KB", 2**10))
# What a function of config/env.py reads, by its name without "read_".
KINDS = {
    "text": "text",
    "label": "name",
    "flag": "`true`, `false`",
    "integer": "number",
    "integers": "numbers",
    "seconds": "seconds",
    "size": "size",
    "byte_size": "size",
    "words": "list",
    "list": "list",
    "commands": "commands",
    "choice": "",  # the choices themselves
    "url": "URL",
    "site_url": "URL",
    "web_address": "URL",
    "http_url": "URL",
    "address": "URL",
    "service_url": "URL",
    "redis_url": "URL",
    "database": "URL",
    "database_url": "URL",
    "proxies": "addresses",
    "currency": "currency",
    "email": "address",
}
HEAD = """# Settings

<!-- Written by `python -m docs.generate`. -->

All settings are environment variables. Lists are separated by commas, sizes are written as `50 MB` or in bytes, and amounts are microdollars (1,000,000 = $1).
"""


class Undocumented(Exception):
    """A setting without a description, a description without a setting, or a default nobody can read."""


@dataclass(frozen=True)
class Setting:
    name: str
    kind: str
    default: str | None  # None: the code computes it


def find_settings(root: Path) -> dict[str, Setting]:
    """Read every `env.…("NAME", default, …)` of the product; the first read of a name counts."""
    found: dict[str, Setting] = {}
    for path in _product_files(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _reads_environment(node):
                setting = _parse(node)
                found.setdefault(setting.name, setting)
    return found


def find_raw_names(root: Path) -> set[str]:
    """Names in capitals that stand as strings in the product: what is read by other means than config/env.py."""
    names: set[str] = set()
    for path in (*_product_files(root), root / "manage.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isupper():
                names.add(node.value)
    return names


def render(root: Path) -> str:
    groups = tomllib.loads((root / "docs" / "settings.toml").read_text(encoding="utf-8"))["group"]
    read = find_settings(root)
    described = [name for group in groups for name in group["settings"]]
    check_names(read, described, find_raw_names(root))
    parts = [HEAD]
    for group in groups:
        defaults = group.get("defaults", {})
        parts.append(f"## {group['title']}\n")
        parts += [f"{group['intro']}\n"] if "intro" in group else []
        parts.append("| variable | value | default | meaning |\n|---|---|---|---|")
        for name, meaning in group["settings"].items():
            setting = read.get(name) or Setting(name, "text", None)
            default = defaults.get(name, setting.default)
            if default is None:
                raise Undocumented(f"docs/settings.toml must say the default of {name}: the code computes it")
            parts.append(f"| `{name}` | {setting.kind} | {default} | {meaning} |")
        parts.append("")
    return "\n".join(parts)


def check_names(read: dict[str, Setting], described: list[str], raw_names: set[str]) -> None:
    """Every setting is described once, and every description belongs to a setting."""
    if missing := sorted(set(read) - set(described)):
        raise Undocumented(f"docs/settings.toml does not describe {', '.join(missing)}")
    if unknown := sorted(set(described) - set(read) - raw_names):
        raise Undocumented(f"docs/settings.toml describes {', '.join(unknown)}, which nothing reads")
    if twice := sorted({name for name in described if described.count(name) > 1}):
        raise Undocumented(f"docs/settings.toml describes {', '.join(twice)} more than once")


def _product_files(root: Path) -> Iterator[Path]:
    for app in PRODUCT:
        yield from sorted(path for path in (root / app).rglob("*.py") if "migrations" not in path.parts)


def _reads_environment(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "env"
        and function.attr.removeprefix("read_") in KINDS
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
        and str(node.args[0].value).isupper()
    )


def _parse(node: ast.Call) -> Setting:
    assert isinstance(node.func, ast.Attribute)
    assert isinstance(node.args[0], ast.Constant)
    reader = node.func.attr.removeprefix("read_")
    name = str(node.args[0].value)
    options = {keyword.arg: keyword.value for keyword in node.keywords}
    kind = KINDS[reader] + _bounds(options, reader)
    default: object = node.args[1] if len(node.args) > 1 else ast.Constant("")
    if reader == "choice":
        kind = ", ".join(f"`{word or '(empty)'}`" for word in _value(node.args[2]))  # type: ignore[attr-defined]
    if reader in ("address", "service_url"):
        default = ast.Constant("")  # its second argument is the schemes
    try:
        shown = _show(_value(default), reader)  # type: ignore[arg-type]
    except ValueError:
        return Setting(name, kind, None)
    return Setting(name, kind, shown)


def _bounds(options: dict[str | None, ast.expr], reader: str) -> str:
    least = _value(options["least"]) if "least" in options else None
    most = _value(options["most"]) if "most" in options else None
    if reader in ("size", "byte_size"):
        return f", from {_size(int(least))}" if least else ""  # type: ignore[call-overload]
    if most is not None:
        return f", {_number(least or 0)} to {_number(most)}"
    return f", from {_number(least)}" if least else ""


def _value(node: ast.expr) -> object:
    """Evaluate literals and the arithmetic that settings use; ValueError for anything computed at run time."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _integer(left) * _integer(right)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _integer(left) ** _integer(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _integer(left) - _integer(right)
        case ast.Name(id="MB"):
            return 2**20
        case _:
            raise ValueError(ast.unparse(node))


def _integer(node: ast.expr) -> int:
    value = _value(node)
    if not isinstance(value, int):
        raise ValueError(ast.unparse(node))
    return value


def _show(value: object, reader: str) -> str:
    if value in ("", []):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if reader in ("size", "byte_size") and isinstance(value, int):
        return f"`{_size(value)}`"
    if isinstance(value, list):
        return "`" + ",".join(map(str, value)) + "`"
    return f"`{_number(value)}`"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size(number: int) -> str:
    for unit, factor in UNITS:
        if number % factor == 0:
            return f"{number // factor} {unit}"
    return str(number)
