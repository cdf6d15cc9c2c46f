"""Validation errors as sentences: dotted key, what is wrong, the value, the fix; one line a key.

pydantic reports a failed union once for each of its members; a person wrote one value under one key and wants one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

_NO_SUCH_MEMBER = {"literal_error", "model_type", "string_type", "int_type", "float_type"}
"""What a union's member says when the value is not meant for it."""


_MEMBERS = {"int", "float", "str", "constrained-int", "constrained-float"}


def explain(error: ValidationError, root: type[BaseModel], hints: dict[str, str]) -> list[str]:
    """The mistakes in `error`, one line a key in the order of the fields of `root`.

    `hints` maps a dotted key to the fix that is said when the key is missing or of no accepted kind.
    """
    by_location: dict[tuple[str, ...], list[Any]] = {}
    for item in error.errors(include_url=False):
        # Members of a union add their own names to the location; the file has only the keys.
        location = tuple(str(part) for part in item["loc"] if not _is_union_member(part))
        by_location.setdefault(location, []).append(item)
    return list(_lines(by_location, root, hints))


def _lines(
    by_location: dict[tuple[str, ...], list[Any]], root: type[BaseModel], hints: dict[str, str]
) -> Iterator[str]:
    for location, items in by_location.items():
        key = ".".join(location)
        deeper = any(other[: len(location)] == location for other in by_location if other != location)
        if deeper and all(item["type"] in _NO_SUCH_MEMBER for item in items):
            continue  # the value was meant for another member, whose own mistakes are said under their keys
        kind = items[0]["type"]
        hint = f"; {hints[key]}" if key in hints else ""
        if kind == "missing":
            yield f"{key}: required, and missing{hint}"
        elif kind == "extra_forbidden":
            yield f"{key}: unknown key; {_suggest(location, root)}"
        elif kind == "value_error":
            yield f"{key}: {items[0]['ctx']['error']}"
        elif hint and kind in _NO_SUCH_MEMBER:
            yield f"{key}: got {_short(items[0]['input'])}{hint}"
        else:
            said = " or ".join(dict.fromkeys(_phrase(item) for item in items))
            yield f"{key}: should be {said} (got {_short(items[0]['input'])})"


def _phrase(item: Any) -> str:
    if item["type"] in {"too_short", "string_too_short"}:
        return f"at least {item['ctx'].get('min_length')} long"
    message: str = item["msg"].split(", unable")[0]
    return message.removeprefix("Input should be ").removeprefix("Input should ")


def _is_union_member(part: Any) -> bool:
    return isinstance(part, str) and (part.endswith("Settings") or "[" in part or part in _MEMBERS)


def _suggest(location: Sequence[str], root: type[BaseModel]) -> str:
    known = _known_keys(location[:-1], root)
    close = difflib.get_close_matches(location[-1], known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(known)}"


def _known_keys(location: Sequence[str], root: type[BaseModel]) -> list[str]:
    section = root
    for part in location:
        if not part.isdigit():
            section = next(_models_in(section.model_fields[part].annotation))
    return sorted(section.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
