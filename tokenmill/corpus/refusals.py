"""Records that cannot be documents, and why.

A *position* counts the records of a file from 1, in file order, whatever the format (for JSON Lines it is the line
number); position 0 stands for the file as a whole: then none of its records is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

EXCERPT_CHARACTERS = 80


class Reason(StrEnum):
    INVALID_ENCODING = "invalid_encoding"
    CORRUPT_ARCHIVE = "corrupt_archive"
    CORRUPT_FILE = "corrupt_file"
    BROKEN_JSON = "broken_json"
    BROKEN_CSV = "broken_csv"
    MISSING_TEXT = "missing_text"
    NULL_TEXT = "null_text"
    TEXT_NOT_A_STRING = "text_not_a_string"
    MISSING_ID = "missing_id"
    EMPTY = "empty"
    NUL_BYTE = "nul_byte"
    TOO_LARGE = "too_large"
    CHANGED_WHILE_READ = "changed_while_read"
    SYMLINK_LOOP = "symlink_loop"
    UNREADABLE = "unreadable"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class Refusal:
    position: int
    reason: Reason
    excerpt: str
    """The start of what was refused, or what the reader said of it; at most 80 characters."""


class WholeFileRefused(Exception):  # noqa: N818 - an outcome, not a fault
    """A reader found that nothing of the file can be trusted."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.refusal = Refusal(0, reason, excerpt(detail))


def excerpt(raw: str | bytes) -> str:
    """The first characters of `raw`, fit for a table: valid Unicode, NUL shown as ␀."""
    text = raw[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return text[:EXCERPT_CHARACTERS].replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")
