"""Stripe's form encoding: `items[0][price]=x` becomes lists and dicts; what is asked for is looked up (`expand`)."""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import parse_qsl

from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.world import Problem, World


def decoded(text: str) -> Obj:
    made: Obj = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        path = name.replace("]", "").split("[")
        _put(made, path, value)
    return {name: _with_lists(value) for name, value in made.items()}


def _put(into: Obj, path: list[str], value: str) -> None:
    for step in path[:-1]:
        into = into.setdefault(step, {})
    last = path[-1]
    into[str(len(into)) if last == "" else last] = value


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: _with_lists(one) for name, one in value.items()}
    if inner and all(name.isdigit() for name in inner):
        return [inner[name] for name in sorted(inner, key=int)]
    return inner


def integer(params: Obj, name: str, default: int | None = None) -> int | None:
    if params.get(name) in (None, ""):
        return default
    try:
        return int(params[name])
    except ValueError:
        raise Problem(
            f"Invalid integer: {params[name]}", code="parameter_invalid_integer", param=name
        ) from None


def flag(params: Obj, name: str, default: bool = False) -> bool:
    return {"true": True, "false": False, None: default, "": default}[params.get(name)]


def only(params: Obj, *names: str) -> None:
    """What is not known is refused, as Stripe does."""
    for name in params:
        if name not in (*names, "expand"):
            raise Problem(f"Received unknown parameter: {name}", code="parameter_unknown", param=name)


def expanded(world: World, obj: Obj, paths: list[str]) -> Obj:
    """A copy, with the named ids replaced by what they name."""
    shown = copy.deepcopy(obj)
    for path in paths:
        _expand(world, shown, path.split("."))
    return shown


def _expand(world: World, at: Any, path: list[str]) -> None:
    if isinstance(at, list):
        for one in at:
            _expand(world, one, path)
        return
    if not isinstance(at, dict) or path[0] not in at:
        raise Problem(f"This property cannot be expanded ({path[0]}).", param="expand")
    value = at[path[0]]
    if isinstance(value, str) and value in world.objects:
        at[path[0]] = value = copy.deepcopy(world.objects[value])
    if len(path) > 1 and value is not None:
        _expand(world, value, path[1:])
