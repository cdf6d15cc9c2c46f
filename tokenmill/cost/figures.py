"""The figures of a report, each with how it was computed. A figure that was not measured has no value, never a zero."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tokenmill.cost.collect import Evidence
from tokenmill.cost.money import format_rate, format_usd, round_usd, usd_of
from tokenmill.cost.report_model import Figure
from tokenmill.cost.run_account import Account, Cell
from tokenmill.cost.words import count, duration

PER_MILLION_QUANTUM = Decimal("1e-9")
UNPRICED_REASON = "the pipeline is unpriced"
NO_TOKENS_REASON = "no tokens stayed in a model"


def figures(evidence: Evidence, packing: dict[str, Any] | None) -> list[Figure]:
    account = evidence.account
    parts = [_total(account)]
    if account.kept:
        parts += [*_per_million(account), _per_tenth_nat(evidence), *_speeds(account), *_shares(account, packing)]
        parts += [*_compile(evidence), *_spot(account)]
    return parts


def _total(account: Account) -> Figure:
    prices = sorted({format_rate(a.usd_per_hour) for a in account.attempts if a.usd_per_hour is not None})
    how = f"{duration(account.billed_us / 1e6)} billed, from spawned to reaped, at {' and '.join(prices)} an hour"
    return Figure(
        key="total_usd",
        label="Cost in all",
        value=account.usd,
        unit="USD",
        how=UNPRICED_REASON if account.usd is None else how,
    )


def usd_per_million(usd: Decimal | None, tokens: int) -> Decimal | None:
    """Dollars for a million tokens; None where there is no price or no token.

    >>> usd_per_million(Decimal("3.85"), 100_000_000)
    Decimal('0.038500000')
    """
    if usd is None or tokens <= 0:
        return None
    return round_usd(Fraction(usd) * 1_000_000 / tokens, PER_MILLION_QUANTUM)


def _per_million(account: Account) -> Iterator[Figure]:
    retained, done = account.retained, account.done
    for key, label, tokens, what in (
        ("usd_per_million_tokens", "Per million tokens", retained.nonpadding_tokens, "non-padding tokens that stayed"),
        (
            "usd_per_million_nonpadding_tokens",
            "Per million non-padding tokens",
            done.nonpadding_tokens,
            "non-padding tokens computed, lost ones too",
        ),
        (
            "usd_per_million_processed_tokens",
            "Per million processed tokens",
            done.processed_tokens,
            "tokens computed, padding and lost ones too",
        ),
    ):
        how = f"{format_usd(account.usd)} ÷ {count(tokens)} {what}"
        if account.usd is None or not tokens:
            how = UNPRICED_REASON if account.usd is None else NO_TOKENS_REASON
        yield Figure(key=key, label=label, value=usd_per_million(account.usd, tokens), unit="USD / 1 M tokens", how=how)


def _per_tenth_nat(evidence: Evidence) -> Figure:
    usd, outputs = evidence.account.usd, evidence.train_outputs
    losses = [row["loss"] for row in evidence.evaluation]
    first = outputs.get("eval_loss_first", losses[0] if losses else None)
    last = outputs.get("eval_loss", losses[-1] if losses else None)
    value = None
    if usd is None:
        how = UNPRICED_REASON
    elif first is None or last is None:
        how = "the run has no two evaluations"
    elif first <= last:
        how = f"the evaluation loss did not fall ({first:.4f} → {last:.4f} nats)"
    else:
        value = round_usd(Fraction(usd) / Fraction(first - last) / 10)
        how = f"{format_usd(usd)} ÷ ({first:.4f} - {last:.4f}) nats × 0.1, on the run's own held-out documents"
    return Figure(key="usd_per_tenth_nat", label="Per tenth of a nat", value=value, unit="USD / 0.1 nat", how=how)


def _speeds(account: Account) -> Iterator[Figure]:
    train = account.us_where(account.is_train) / 1e6
    steps = account.us_where(lambda cell: account.is_train(cell) and cell.phase in {"step", "input_wait"}) / 1e6
    for key, label, tokens, seconds, what in (
        (
            "tokens_per_second",
            "Tokens a second",
            account.done.nonpadding_tokens,
            steps,
            "stepping or waiting for input",
        ),
        (
            "tokens_per_billed_second",
            "Tokens kept a billed second",
            account.retained.nonpadding_tokens,
            train,
            "billed",
        ),
    ):
        how = f"{count(tokens)} non-padding tokens ÷ {duration(seconds)} of training {what}"
        value = round(tokens / seconds, 1) if seconds > 0 and tokens else None
        yield Figure(
            key=key, label=label, value=value, unit="tokens / s", how=how if value is not None else NO_TOKENS_REASON
        )


def _shares(account: Account, packing: dict[str, Any] | None) -> Iterator[Figure]:
    lost = account.usd_where(lambda cell: cell.lost)
    how = "train time after the last committed checkpoint of each attempt that did not finish"
    yield Figure(
        key="lost_work_usd", label="Lost work", value=lost, unit="USD", how=how if lost is not None else UNPRICED_REASON
    )
    done = account.done
    stepping = account.usd_where(lambda cell: account.is_train(cell) and cell.phase == "step")
    if stepping is None or not done.processed_tokens:
        reason = UNPRICED_REASON if stepping is None else NO_TOKENS_REASON
        yield Figure(key="padding_usd", label="Padding", value=None, unit="USD", how=reason)
        return
    padding = done.processed_tokens - done.nonpadding_tokens
    yield Figure(
        key="padding_usd",
        label="Padding",
        value=round_usd(Fraction(stepping) * padding / done.processed_tokens),
        unit="USD",
        how=f"{format_usd(stepping)} of steps × {count(padding)} padding ÷ {count(done.processed_tokens)} processed",
    )
    if packing is not None:
        saved = round_usd(Fraction(stepping) * (Fraction(packing["one_per_row_rows"], packing["rows"]) - 1))
        yield Figure(
            key="packing_saved_usd",
            label="Saved by packing",
            value=saved,
            unit="USD",
            how=f"one document a row needs {count(packing['one_per_row_rows'])} rows, packing took "
            f"{count(packing['rows'])}; the difference at the same price a row, {format_usd(stepping)} of steps",
        )


def _compile(evidence: Evidence) -> Iterator[Figure]:
    account = evidence.account
    usd = account.usd_where(lambda cell: cell.phase == "compile")
    seconds = account.us_where(lambda cell: cell.phase == "compile") / 1e6
    how = f"{duration(seconds)} in phase compile" if usd is not None else UNPRICED_REASON
    yield Figure(key="compile_usd", label="Compiling", value=usd, unit="USD", how=how)
    timings = evidence.summary.get("xla_step_seconds")
    if isinstance(timings, dict) and timings.get("off") and timings.get("on"):
        payback = payback_steps(seconds, timings["off"], timings["on"])
        how = f"{duration(seconds)} ÷ ({timings['off']:.4f} - {timings['on']:.4f}) s saved a step"
        value = None if payback is None else float(payback)
        yield Figure(
            key="xla_payback_steps",
            label="XLA pays back after",
            value=value,
            unit="steps",
            how=how if value is not None else "a compiled step is not faster here, so it never pays back",
        )


def payback_steps(compile_seconds: float, step_seconds_without: float, step_seconds_with: float) -> int | None:
    """Steps after which compiling has paid for itself; None: never."""
    saved = step_seconds_without - step_seconds_with
    # Rounded first, since 0.5 - 0.4 is a little less than 0.1.
    return None if saved <= 0 else math.ceil(round(compile_seconds / saved, 6))


def _spot(account: Account) -> Iterator[Figure]:
    """What the Spot market saved against one undisturbed on-demand attempt."""
    train = [(index, account.attempts[index]) for index in account.kept]
    spot = [(index, a) for index, a in train if a.spawned.get("market") == "spot"]
    if not spot:
        return
    rates = {index: a.spawned.get("on_demand_usd_per_hour") for index, a in train}
    paid = account.usd_where(account.is_train)
    if paid is None or any(rate is None for rate in rates.values()):
        how = UNPRICED_REASON if paid is None else "the on-demand price of the machine is not known"
        yield Figure(key="spot_saved_usd", label="Saved by Spot", value=None, unit="USD", how=how)
        return
    first = min(account.kept)

    def needed(cell: Cell) -> bool:
        """An undisturbed attempt starts, compiles and restores once, and loses nothing."""
        again = cell.attempt != first and cell.phase in {"start", "pull", "compile", "checkpoint_restore"}
        return account.is_train(cell) and not cell.lost and not again

    undisturbed = sum(
        (usd_of(us, Decimal(str(rates[cell.attempt]))) for cell, us in account.cell_us.items() if needed(cell)),
        Fraction(),
    )
    waited = sum(end - begin for begin, end in account.waiting)
    yield Figure(
        key="spot_saved_usd",
        label="Saved by Spot",
        value=round_usd(undisturbed) - paid,
        unit="USD",
        how=f"{format_usd(undisturbed)} for one undisturbed attempt on demand, less {format_usd(paid)} paid, lost work "
        f"and repeated starts included; the price of it was {duration(waited)} of waiting",
    )
