"""Events that a person may want to be told of: `flows.notifications` makes automations of them.

| event, on `tokenmill.pipeline.<name>` | when |
|---|---|
| `tokenmill.cost-regression` | the night's cost is beyond its baseline's noise |
| `tokenmill.low-utilisation` | accelerators (or processors) were less busy than `notify.min_utilisation_pct` |

Failures and budgets need no event of their own: they are states of the flow run.
"""

from __future__ import annotations

from typing import Any

from prefect.events import emit_event

from tasks.night import Night
from tokenmill.workspace import read_json

COST_REGRESSION = "tokenmill.cost-regression"
LOW_UTILISATION = "tokenmill.low-utilisation"


def emit_notices(night: Night, report: dict[str, Any]) -> None:
    """After the report, whose stage outputs are `report`."""
    if report.get("gate", "passed") != "passed":
        sentence = str(report["baseline"].get("sentence") or report["first_line"])
        _emit(night, COST_REGRESSION, sentence, gate=report["gate"])
    mean = mean_utilisation(night, report)
    least = night.pipeline.notify.min_utilisation_pct
    if mean is not None and mean[0] < least:
        sentence = f"{mean[1]} were {mean[0]:.0f} % busy on average, less than notify.min_utilisation_pct: {least:g}"
        _emit(night, LOW_UTILISATION, sentence, busy_pct=round(mean[0], 1))


def mean_utilisation(night: Night, report: dict[str, Any]) -> tuple[float, str] | None:
    """Mean percentage over the report's stretches, and of what; None if nothing was sampled."""
    try:
        stretches = read_json(night.workspace.root / report["folder"] / "report.json").get("utilisation", [])
    except FileNotFoundError:
        return None
    for key, what in (("device_pct", "accelerators"), ("cpu_pct", "processors")):
        values = [stretch[key] for stretch in stretches if stretch.get(key) is not None]
        if values:
            return sum(values) / len(values), what
    return None


def _emit(night: Night, event: str, sentence: str, **payload: Any) -> None:
    resource = {"prefect.resource.id": f"tokenmill.pipeline.{night.name}", "prefect.resource.name": night.name}
    emit_event(event=event, resource=resource, payload={"sentence": sentence, **payload})
