from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill import canonical
from tokenmill.canonical import canonical_json, fingerprint


def test_the_worked_examples_hold() -> None:
    assert doctest.testmod(canonical).failed == 0


@given(st.dictionaries(st.text(), st.integers()))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert canonical_json(value) == canonical_json(backwards)
    assert fingerprint(value) == fingerprint(backwards)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json([value])
