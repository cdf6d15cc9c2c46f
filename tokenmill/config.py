"""What every config section shares: frozen, unknown keys refused, and each field marked with its role.

Roles (DESIGN: a run and its identity):

* *identity*: another value is another run (corpus, tokenizer, model, global batch size, seed, ...).
* *numeric*: the same run, but rounding may differ (precision, XLA, micro-batch, threads, replicas, ...).
* *operational*: no effect on the numbers (price, budget, schedule, runtime, retention, ...).

Each room keeps its own section in its ``settings.py``; ``tokenmill.pipelines`` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class Role(StrEnum):
    IDENTITY = "identity"
    NUMERIC = "numeric"
    OPERATIONAL = "operational"


class Section(BaseModel):
    """A frozen part of pipelines.yaml. Subclasses mark each leaf with `identity`, `numeric` or `operational`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _a_truth_value_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`layers: true` would otherwise be one layer."""
        if isinstance(value, bool) and bool not in _kinds(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError(f"got {str(value).lower()}, where a number or a text belongs")
        return value


def identity(default: Any = ..., **constraints: Any) -> Any:
    """A field that makes another run when it changes. Takes pydantic's `Field` keywords."""
    return _field(Role.IDENTITY, default, constraints)


def numeric(default: Any = ..., **constraints: Any) -> Any:
    """A field that may change rounding, not the run. Takes pydantic's `Field` keywords."""
    return _field(Role.NUMERIC, default, constraints)


def operational(default: Any = ..., **constraints: Any) -> Any:
    """A field without effect on the numbers. Takes pydantic's `Field` keywords."""
    return _field(Role.OPERATIONAL, default, constraints)


def _field(role: Role, default: Any, constraints: dict[str, Any]) -> Any:
    return Field(default, json_schema_extra={"x-role": role.value}, **constraints)


def role_of(section: type[Section], field: str) -> Role | None:
    extra = section.model_fields[field].json_schema_extra
    return Role(str(extra["x-role"])) if isinstance(extra, Mapping) and "x-role" in extra else None


def values_with_role(section: Section, role: Role) -> dict[str, Any]:
    """The fields of `section` that carry `role`, nested as in the file, as plain JSON values.

    An unmarked field holds sections (one, a list or a mapping of them) and is descended into.
    """
    chosen: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        mark = role_of(type(section), name)
        if mark is role:
            chosen[name] = section.model_dump(mode="json", include={name})[name]
        elif mark is None:
            nested = _descend(value, role)
            if nested:
                chosen[name] = nested
    return chosen


def _descend(value: Any, role: Role) -> Any:
    if isinstance(value, Section):
        return values_with_role(value, role)
    if isinstance(value, Mapping):
        return {key: inner for key, item in value.items() if (inner := _descend(item, role))}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [inner for item in value if (inner := _descend(item, role))]
    return None


def unmarked_leaves(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Dotted names of fields that neither carry a role nor hold sections: there must be none (a test holds this)."""
    for name, field in section.model_fields.items():
        if role_of(section, name) is not None:
            continue
        inner = list(_sections_in(field.annotation))
        if not inner:
            yield f"{prefix}{name}"
        for nested in inner:
            yield from unmarked_leaves(nested, f"{prefix}{name}.")


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _kinds(argument)


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _sections_in(argument)
