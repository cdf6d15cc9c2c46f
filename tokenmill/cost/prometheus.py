"""The report's numbers for scrapers: a text file that node_exporter's textfile collector picks up as it is."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from tokenmill.cost.report_model import Report

_PER_RUN = (
    ("usd_per_million_tokens", "tokenmill_usd_per_million_tokens", "US dollars per million tokens kept"),
    ("tokens_per_second", "tokenmill_tokens_per_second", "Non-padding tokens a second while stepping"),
    ("lost_work_usd", "tokenmill_lost_work_usd", "US dollars of work that was lost"),
)


def prometheus_text(report: Report) -> bytes:
    """In the text exposition format. What was not measured has no sample."""
    registry = CollectorRegistry()
    labels = {"pipeline": report.pipeline}

    def gauge(name: str, text: str, value: float, **more: str) -> None:
        known = gauges.get(name)
        if known is None:
            known = gauges[name] = Gauge(name, text, [*labels, *more], registry=registry)
        known.labels(**labels, **more).set(value)

    gauges: dict[str, Gauge] = {}
    gauge("tokenmill_report_time_seconds", "When the report was made, Unix time", report.generated)
    gauge("tokenmill_outcome", "1 for the outcome of the pipeline's last night", 1, outcome=report.outcome)
    gauge("tokenmill_goodput_ratio", "Billed time that moved the model forward", report.cost.goodput_pct / 100)
    if report.cost.total_usd is not None:
        gauge("tokenmill_cost_usd", "US dollars for the run, all attempts", float(report.cost.total_usd))
    for row in report.cost.phases:
        gauge("tokenmill_billed_seconds", "Billed seconds by phase", row.seconds, phase=row.phase, kind=row.kind)
    for key, name, text in _PER_RUN:
        value = next((figure.value for figure in report.figures if figure.key == key), None)
        if value is not None:
            gauge(name, text, float(value))
    if report.tokens is not None:
        gauge("tokenmill_tokens_kept", "Non-padding tokens in the model", report.tokens.retained_nonpadding)
    if report.evaluations:
        gauge("tokenmill_eval_loss_nats", "Loss on held-out documents", report.evaluations[-1].loss)
    if report.baseline.change_pct is not None:
        gauge("tokenmill_cost_change_ratio", "Against the baseline's median", report.baseline.change_pct / 100)
    return generate_latest(registry)
