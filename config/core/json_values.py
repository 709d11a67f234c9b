"""The JSON type, and a walk over its values."""

from __future__ import annotations

from collections.abc import Iterable


def iterate_children(value: JSON) -> Iterable[JSON]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()


JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
