"""Whether a text is a cron schedule of five fields: minute, hour, day of the month, month, day of the week.

A field is `*`, a value, a range `a-b`, any of these with a step `/n`, or several of them between commas; months and
days of the week also by their English names (`mon-fri`).
"""

from __future__ import annotations

import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of the week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
_ITEM = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[1-9]\d*))?")


def check_cron(text: str) -> None:
    """Raises `ValueError` with a sentence about the first thing that is wrong."""
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(
            f"'{text}' has {len(fields)} fields; cron needs five, such as '0 22 * * *' (every day at 22:00)"
        )
    for field, (name, least, most, names) in zip(fields, _FIELDS, strict=True):
        for item in field.lower().split(","):
            if not _is_item(item, least, most, names):
                raise ValueError(f"'{item}' in '{text}' is no {name}; write {least} to {most}, a range, or *")


def _is_item(item: str, least: int, most: int, names: dict[str, int]) -> bool:
    match = _ITEM.fullmatch(item)
    if match is None:
        return False
    ends = [names.get(end, int(end) if end.isdecimal() else -1) for end in match.group("first", "last") if end]
    return all(least <= end <= most for end in ends) and ends == sorted(ends)
