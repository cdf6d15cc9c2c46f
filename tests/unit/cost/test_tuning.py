"""Successive halving, the Pareto table and the lines to paste, by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.cost.tuning import (
    Knobs,
    Trial,
    best_at,
    grid,
    last_of_each,
    pareto,
    paste_lines,
    survivors,
    xla_sentence,
)
from tokenmill.cost.tuning_page import markdown, page

NOW = Knobs(sequence_length=256, global_batch_size=16, micro_batch_size=16, precision="float32", xla="off")


def trial(speed: float, memory: int = 1, *, rung: int = 0, **knobs: Any) -> Trial:
    """`speed` in tokens a second."""
    return Trial(
        knobs=NOW.model_copy(update=knobs),
        rung=rung,
        status="measured",
        step_seconds=(1000 / speed, 1000 / speed),
        nonpadding_tokens=2000,
        processed_tokens=2500,
        peak_memory_bytes=memory * 2**30,
        billed_seconds=36.0,
        usd_per_hour=Decimal("7.68"),
    )


def test_the_grid_holds_what_divides_and_begins_with_what_is_there() -> None:
    found = grid(
        NOW,
        sequence_lengths=[256, 128],
        batch_sizes=[16, 6],
        accumulations=[1, 4],
        precisions=["float32", "bfloat16"],
        xla=["off", "on"],
    )
    assert found[0] == NOW
    assert len(found) == len(set(found)) == 2 * 3 * 2 * 2  # 6 in 4 passes does not divide
    assert all(k.global_batch_size % k.micro_batch_size == 0 for k in found)


def test_known_prices_of_speeds() -> None:
    assert [str(trial(speed).usd_per_million_tokens) for speed in (5000, 6250)] == ["0.426667", "0.341333"]
    assert trial(5000).usd == Decimal("0.0768")


def test_the_faster_half_of_each_length_goes_on() -> None:
    trials = [trial(100, xla="on"), trial(300), trial(200, precision="bfloat16"), trial(50, sequence_length=128)]
    out = Trial(knobs=NOW.model_copy(update={"micro_batch_size": 8}), rung=0, status="out_of_memory")
    assert survivors([*trials, out]) == [trials[3].knobs, trials[1].knobs, trials[2].knobs]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_nothing_on_the_front_is_beaten_and_all_else_is(points: list[tuple[int, int]]) -> None:
    trials = [trial(speed, memory, global_batch_size=16 * (n + 1)) for n, (speed, memory) in enumerate(points)]
    front = pareto(trials)

    def beaten(one: Trial, by: Trial) -> bool:
        no_worse = by.tokens_per_second >= one.tokens_per_second and by.peak_memory_bytes <= one.peak_memory_bytes  # type: ignore[operator]
        better = by.tokens_per_second > one.tokens_per_second or by.peak_memory_bytes < one.peak_memory_bytes  # type: ignore[operator]
        return no_worse and better

    assert front
    for one in trials:
        assert (one in front) != any(beaten(one, by) for by in trials) or any(
            (by.tokens_per_second, by.peak_memory_bytes) == (one.tokens_per_second, one.peak_memory_bytes)
            for by in front
        )


def test_the_best_is_of_the_last_rung_and_of_its_own_length() -> None:
    trials = [trial(900), trial(500, rung=1), trial(400, rung=1, xla="on"), trial(9000, sequence_length=128)]
    best = best_at(trials, 256)
    assert best is not None
    assert (best.rung, best.tokens_per_second) == (1, 500)
    assert best_at(trials, 512) is None
    assert len(last_of_each(trials)) == 3


def test_lines_to_paste_say_that_another_batch_is_another_run() -> None:
    assert paste_lines(NOW, NOW)[1] == "  global_batch_size: 16"
    text = "\n".join(paste_lines(NOW.model_copy(update={"global_batch_size": 32}), NOW))
    assert "was 16: another run" in text
    assert 'xla: "off"' in text


def test_xla_pays_back_or_never_or_is_not_known() -> None:
    off = trial(100).model_copy(update={"start_seconds": 5.0})  # 10 s a step
    on = trial(125, xla="on").model_copy(update={"start_seconds": 25.0})  # 8 s a step
    assert (xla_sentence([off, on], on) or "").startswith("XLA pays its 20.0 s back after 10 steps")
    assert "never" in (xla_sentence([off, trial(90, xla="on")], off) or "")
    assert xla_sentence([off], off) is None


def test_the_page_tells_of_memory_that_ran_out_and_of_nothing_measured() -> None:
    out = Trial(knobs=NOW, rung=0, status="out_of_memory")
    assert "No configuration could be measured." in markdown([out], NOW, "")
    text = markdown([out, trial(100, micro_batch_size=8)], NOW, "All were looked at.")
    assert "out of memory" in text
    assert "micro_batch_size: 8" in text
    whole = page([out, trial(100, micro_batch_size=8)], NOW, "<all>", "tuning of demo")
    assert "&lt;all&gt;" in whole
    assert "http://" not in whole.replace("http://www.w3.org", "")
