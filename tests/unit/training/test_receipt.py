"""The receipt balances exactly when every row was consumed once an epoch."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from training_helpers import order

from tokenmill.training.receipt import Receipt

SEED = 5


@given(rows=st.integers(1, 20), batch=st.integers(1, 12), updates=st.integers(1, 12), data=st.data())
def test_it_balances_for_every_cut_and_every_skip(rows: int, batch: int, updates: int, data: st.DataObject) -> None:
    receipt = Receipt(rows)
    for update in range(updates):
        skipped = data.draw(st.booleans())
        receipt.add(update * batch, order(rows, SEED, update * batch, batch), skipped=skipped)
        receipt = Receipt(rows, json.loads(json.dumps(receipt.state())))
    document = receipt.document(order, SEED, updates * batch)
    assert document["balanced"]
    assert sum(epoch["seen"]["rows"] + epoch["skipped"]["rows"] for epoch in document["epochs"]) == updates * batch
    full = [epoch for epoch in document["epochs"] if epoch["expected"]["rows"] == rows]
    assert all(epoch["expected"]["sum"] == rows * (rows - 1) // 2 for epoch in full)


@given(rows=st.integers(3, 20), lost=st.integers(0, 2))
def test_a_lost_a_doubled_and_a_swapped_row_are_seen(rows: int, lost: int) -> None:
    numbers = order(rows, SEED, 0, rows)
    for wrong in (
        np.delete(numbers, lost),
        np.append(numbers, numbers[lost]),
        np.where(numbers == lost, 3 % rows, numbers),
    ):
        if np.array_equal(np.sort(wrong), np.sort(numbers)):
            continue
        receipt = Receipt(rows)
        receipt.add(0, wrong[:rows])
        if len(wrong) > rows:
            receipt.add(0, wrong[rows:])
        assert not receipt.document(order, SEED, rows)["balanced"]
