"""The two ways a stage ends early on purpose; everything else is a crash."""

from __future__ import annotations


class UserError(Exception):
    """Something that the user must mend (config, data, image): exit code 2, no retry.

    The message is one sentence that names the thing, the value and the fix.
    """


class Interrupted(Exception):  # noqa: N818 - an outcome, not a fault
    """The stage was asked to stop and everything is committed: exit code 75, safe to start again."""
