"""Evidence → Report: the account in tables, the sentences around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from tokenmill.cost.accounting import STILL_OPEN, AttemptAccount
from tokenmill.cost.collect import Evidence
from tokenmill.cost.figures import figures
from tokenmill.cost.first_line import first_line
from tokenmill.cost.money import format_rate
from tokenmill.cost.prices import Price
from tokenmill.cost.report_model import (
    Alarm,
    AttemptRow,
    BaselineVerdict,
    BillLine,
    Cost,
    Evaluation,
    LostWork,
    Night,
    PhaseCost,
    Point,
    Report,
    StageCost,
    Tokens,
    Utilisation,
)
from tokenmill.cost.run_account import Account
from tokenmill.cost.words import duration, plural

LOST_WORK = "lost work"
LARGEST_GAP_PCT = 0.5
"""Law 6: recorded phases and billed time differ by no more."""
CURVE_POINTS = 400


def build_report(
    evidence: Evidence,
    *,
    generated: float,
    config: dict[str, Any],
    config_changes: list[str] | None,
    environment: dict[str, Any],
    baseline: BaselineVerdict,
    nights: list[Night],
    packing: dict[str, Any] | None,
    profile: list[dict[str, Any]],
) -> Report:
    account = evidence.account
    report = Report(
        generated=generated,
        first_line="",
        outcome=outcome_of(evidence.invocation),
        message=message_of(evidence.invocation),
        pipeline=evidence.invocation["pipeline"],
        invocation_id=evidence.invocation["id"],
        run_id=evidence.run["id"] if evidence.run else None,
        snapshot=(evidence.run or {}).get("snapshot") or evidence.prepare_outputs.get("snapshot"),
        notices=list(_notices(evidence, generated)),
        figures=figures(evidence, packing),
        cost=_cost(account),
        tokens=_tokens(account),
        attempts=[_attempt_row(account, index) for index in range(len(account.attempts))],
        bill=list(_bill(account)),
        evaluations=_evaluations(evidence.evaluation),
        unigram_entropy_nats=(evidence.verdict or {}).get("unigram_entropy_nats"),
        samples=[{"prompt": str(row["prompt"]), "text": str(row["text"])} for row in evidence.samples],
        validation=evidence.verdict,
        receipt=evidence.receipt,
        summary=evidence.summary,
        packing=packing,
        environment=environment,
        config=config,
        config_changes=config_changes,
        baseline=baseline,
        nights=nights,
        curve=_curve(evidence.metrics),
        utilisation=[Utilisation(**row) for row in evidence.utilisation],
        alarms=[Alarm(**row) for row in evidence.alarms],
        profile=profile,
    )
    return report.model_copy(update={"first_line": first_line(report)})


def outcome_of(invocation: Mapping[str, Any]) -> str:
    """The invocation's outcome; while it is still running (the report is its last stage), what its stages say."""
    if invocation.get("outcome", "running") != "running":
        return str(invocation["outcome"])
    last = _last_stage(invocation)
    if last is None:
        return "crashed"
    outputs, status = last.get("outputs") or {}, last["status"]
    if last["stage"] == "validate" and outputs.get("verdict") == "fail" and status == "failed":
        return "refused_by_validation"
    if outputs.get("user_error"):
        return "user_error"
    if status == "completed":
        return "finished" if last["stage"] == "train" else "already_trained"
    return {"failed": "crashed", "running": "crashed"}.get(status, str(status))


def message_of(invocation: Mapping[str, Any]) -> str:
    last = _last_stage(invocation)
    return str(invocation.get("message") or (last or {}).get("message") or "")


def _last_stage(invocation: Mapping[str, Any]) -> Mapping[str, Any] | None:
    worked = [record for record in invocation.get("stages", []) if record["stage"] != "report"]
    return worked[-1] if worked else None


def _cost(account: Account) -> Cost:
    billed = account.billed_us
    train = account.us_where(account.is_train)
    moved = account.us_where(lambda cell: account.is_train(cell) and cell.phase == "step" and not cell.lost)
    return Cost(
        total_usd=account.usd,
        billed_seconds=billed / 1e6,
        waiting_seconds=sum(end - begin for begin, end in account.waiting),
        waiting=list(account.waiting),
        goodput_pct=round(100 * moved / billed, 2) if billed else 0.0,
        train_goodput_pct=round(100 * moved / train, 2) if train else None,
        phases=sorted(_phases(account), key=lambda row: -row.seconds),
        stages=list(_stages(account)),
        lost_work=list(_lost_work(account)),
    )


def _phases(account: Account) -> Iterator[PhaseCost]:
    names = sorted({cell.phase for cell in account.cell_us if not cell.lost})
    for phase, lost in [*((name, False) for name in names), *([(LOST_WORK, True)] if _any_lost(account) else [])]:

        def chosen(cell: Any, phase: str = phase, lost: bool = lost) -> bool:
            return bool(cell.lost == lost and (lost or cell.phase == phase))

        duration_us = account.us_where(chosen)
        yield PhaseCost(
            phase=phase,
            seconds=duration_us / 1e6,
            usd=account.usd_where(chosen),
            share_pct=100 * duration_us / account.billed_us,
            kind="lost" if lost else "goodput" if phase == "step" else "overhead",
        )


def _any_lost(account: Account) -> bool:
    return any(cell.lost for cell in account.cell_us)


def _stages(account: Account) -> Iterator[StageCost]:
    for stage in dict.fromkeys(attempt.stage for attempt in account.attempts):
        members = {index for index, attempt in enumerate(account.attempts) if attempt.stage == stage}
        yield StageCost(
            stage=stage,
            attempts=len(members),
            seconds=sum(account.attempts[index].billed_us for index in members) / 1e6,
            usd=account.usd_where(lambda cell, members=members: cell.attempt in members),  # type: ignore[misc]
        )


def _lost_work(account: Account) -> Iterator[LostWork]:
    for cause in sorted({account.attempts[index].reason for index in account.kept}):
        members = {index for index in account.kept if account.attempts[index].reason == cause}
        lost_us = account.us_where(lambda cell, members=members: cell.lost and cell.attempt in members)  # type: ignore[misc]
        kept = [account.kept[index] for index in members]
        steps = sum(part.reached.step - part.end.step for part in kept)
        if lost_us or steps:
            yield LostWork(
                cause=cause,
                attempts=len(members),
                steps=steps,
                nonpadding_tokens=sum(part.reached.nonpadding_tokens - part.end.nonpadding_tokens for part in kept),
                seconds=lost_us / 1e6,
                usd=account.usd_where(lambda cell, members=members: cell.lost and cell.attempt in members),  # type: ignore[misc]
            )


def _tokens(account: Account) -> Tokens | None:
    if not account.kept:
        return None
    retained, done = account.retained, account.done
    padding = done.processed_tokens - done.nonpadding_tokens
    return Tokens(
        retained_nonpadding=retained.nonpadding_tokens,
        retained_processed=retained.processed_tokens,
        lost_nonpadding=done.nonpadding_tokens - retained.nonpadding_tokens,
        lost_processed=done.processed_tokens - retained.processed_tokens,
        padding_pct=round(100 * padding / done.processed_tokens, 2) if done.processed_tokens else None,
        steps=retained.step,
        replayed_steps=max(0, done.step - retained.step),
    )


def _attempt_row(account: Account, index: int) -> AttemptRow:
    attempt, kept = account.attempts[index], account.kept.get(index)
    said = attempt.spawned
    return AttemptRow(
        attempt_id=attempt.attempt_id,
        stage=attempt.stage,
        invocation_id=said.get("invocation_id"),
        started=attempt.started,
        ended=attempt.ended,
        estimated=attempt.estimated,
        billed_seconds=attempt.billed_us / 1e6,
        reason=attempt.reason,
        exit_code=attempt.exit_code,
        usd=account.usd_where(lambda cell: cell.attempt == index),
        from_step=kept.begin.step if kept else None,
        to_step=kept.end.step if kept else None,
        lost_steps=kept.reached.step - kept.end.step if kept else 0,
        usd_per_hour=attempt.usd_per_hour,
        **{
            key: said.get(key)
            for key in ("host", "machine_type", "market", "price_source", "price_as_of", "price_note")
        },
    )


def _bill(account: Account) -> Iterator[BillLine]:
    for cell, usd in sorted((account.cell_usd or {}).items(), key=lambda item: (item[0].attempt, item[0].phase)):
        attempt = account.attempts[cell.attempt]
        said = attempt.spawned
        yield BillLine(
            attempt_id=attempt.attempt_id,
            stage=attempt.stage,
            invocation_id=said.get("invocation_id"),
            phase=cell.phase,
            lost=cell.lost,
            seconds=account.cell_us[cell] / 1e6,
            usd=usd,
            usd_per_hour=Decimal(said["usd_per_hour"]),
            on_demand_usd_per_hour=said.get("on_demand_usd_per_hour"),
            started=attempt.started,
            ended=attempt.ended,
            region=said.get("price_region"),
            **{key: said.get(key) for key in ("host", "machine_type", "market", "price_source")},
        )


def _notices(evidence: Evidence, generated: float) -> Iterator[str]:
    account = evidence.account
    if account.usd is None:
        yield "The pipeline is unpriced: there are seconds and tokens here, and no dollars."
    yield from dict.fromkeys(
        sentence for attempt in account.attempts for sentence in _price_notices(attempt, generated)
    )
    for attempt in account.attempts:
        if attempt.reason == STILL_OPEN:
            so_far = duration(attempt.billed_us / 1e6)
            yield f"Of this report's own time {so_far} are in the bill; what it takes from here on is not."
        elif attempt.estimated:
            yield (
                f"Nobody saw the end of attempt {attempt.attempt_id} of {attempt.stage}: it is billed until its last "
                "sign of life plus one second, and may be off by that second."
            )
        if attempt.overrun_us > LARGEST_GAP_PCT / 100 * attempt.billed_us and attempt.overrun_us > 100_000:
            surplus = duration(attempt.overrun_us / 1e6)
            yield (
                f"Attempt {attempt.attempt_id} of {attempt.stage} recorded {surplus} more than was billed: its clock "
                "and its supervisor's differ, and the surplus was cut off."
            )
    uncommitted = [part for index, part in account.kept.items() if account.attempts[index].exit_code != 0]
    if uncommitted and outcome_of(evidence.invocation) != "finished":
        steps = uncommitted[-1].reached.step - uncommitted[-1].end.step
        if steps:
            yield f"{plural(steps, 'step')} after the last committed checkpoint will be done again by the next start."


def _price_notices(attempt: AttemptAccount, generated: float) -> list[str]:
    said = attempt.spawned
    if said.get("usd_per_hour") is None:
        return []
    price = Price(
        machine_type=said.get("machine_type") or "the machine",
        market=said.get("market") or "on_demand",
        usd_per_hour=Decimal(said["usd_per_hour"]),
        source=said.get("price_source") or "unknown source",
        as_of=said.get("price_as_of"),
        note=said.get("price_note"),
    )
    sentences = price.warnings_at(attempt.started)
    if price.note:
        sentences.append(
            f"the price of {price.machine_type}, {format_rate(price.usd_per_hour)} an hour, is marked '{price.note}'"
        )
    return [sentence[0].upper() + sentence[1:] + "." for sentence in sentences]


def _evaluations(rows: list[dict[str, Any]]) -> list[Evaluation]:
    """By step; a step that was done again counts as the last attempt saw it."""
    by_step = {row["step"]: row for row in rows if row.get("loss") is not None}
    keys = ("step", "loss", "bits_per_byte", "perplexity")
    return [Evaluation(**{key: by_step[step].get(key) for key in keys}) for step in sorted(by_step)]


def _curve(metrics: list[dict[str, Any]]) -> list[Point]:
    every = max(1, -(-len(metrics) // CURVE_POINTS))
    chosen = [row for index, row in enumerate(metrics) if index % every == 0 or index == len(metrics) - 1]
    return [
        Point(
            step=row["step"],
            time=row["time"],
            attempt=row.get("attempt", 1),
            loss=row.get("loss"),
            tokens_per_second=row.get("tokens_per_second"),
        )
        for row in chosen
    ]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings → dotted keys."""
    if isinstance(value, Mapping) and value:
        return {
            key: leaf
            for name, inner in value.items()
            for key, leaf in flatten(inner, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: value}


def config_diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What changed, as `dotted.key: before → after`."""
    left, right = flatten(before), flatten(after)
    absent = "(absent)"
    return [
        f"{key}: {left.get(key, absent)} → {right.get(key, absent)}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key, absent) != right.get(key, absent)
    ]
