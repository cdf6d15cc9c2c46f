"""A pipeline's own rules: a Great Expectations suite over the documented columns (see `tables`).

Either the JSON that Great Expectations writes, or a Python file:

    import great_expectations.expectations as gxe

    def suite():
        return [
            gxe.ExpectColumnValuesToBeBetween(column="tokens", max_value=100_000, mostly=0.999),
            gxe.ExpectColumnMaxToBeBetween(column="refused", max_value=0, meta={"table": "sources"}),
        ]

`meta.table` is one of documents (the default), shards, sources, snapshot. Severity `critical` (Great Expectations'
default) fails the verdict, `warning` warns, `info` only tells.
"""

from __future__ import annotations

import hashlib
import json
import runpy
from pathlib import Path
from typing import Any

from tokenmill.errors import UserError


def suite_hash(path: Path) -> str:
    """Of the file's bytes; part of the rules' hash. `UserError` if there is no such file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"checks.suite: '{path}' cannot be read ({error.strerror}); name a JSON or Python file"
        ) from None


def load_suite(path: Path) -> list[Any]:
    """The suite's expectations. Imports Great Expectations; `UserError` names what is wrong with the file."""
    from great_expectations import ExpectationSuite
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    # An `ExpectationSuite` drops what it does not know with a log line; a rule that is never measured must not be.
    try:
        made = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else _call(path)
        if isinstance(made, ExpectationSuite):
            return list(made.expectations)
        raw = made["expectations"] if isinstance(made, dict) else made
        return [
            ExpectationConfiguration(**_parts(item)).to_domain_obj() if isinstance(item, dict) else item for item in raw
        ]
    except UserError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise UserError(f"checks.suite: '{path.name}' is no usable suite: {type(error).__name__}: {lines[0]}") from None


def _call(path: Path) -> Any:
    names = runpy.run_path(str(path))
    if not callable(names.get("suite")):
        raise UserError(f"checks.suite: '{path.name}' has no function `suite()` that returns expectations")
    return names["suite"]()


def _parts(saved: dict[str, Any]) -> dict[str, Any]:
    """What of a saved expectation makes the rule; the rest (its id, what it last found) is somebody's history."""
    return {key: saved[key] for key in ("type", "kwargs", "meta", "notes", "description", "severity") if key in saved}
