"""Events that a person may want to be told of: `flows.notifications` makes automations of them.

| event, on `tokenmill.pipeline.<name>` | when |
|---|---|
| `tokenmill.cost-regression` | the night's cost is beyond its baseline's noise |
| `tokenmill.alarm.<kind>` | an alarm of a training (`tokenmill.telemetry.alarm`), such as low_utilisation |
| `tokenmill.hang` | the watchdog has ended a training that took no more steps |

Failures and budgets need no event of their own: they are states of the flow run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect.events import emit_event

COST_REGRESSION = "tokenmill.cost-regression"
LOW_UTILISATION = "tokenmill.alarm.low_utilisation"


def emit_regression(pipeline: str, report: Mapping[str, Any]) -> None:
    """After the report, whose stage outputs are `report`, if its gate did not pass."""
    if report.get("gate", "passed") != "passed":
        sentence = str(report["baseline"].get("sentence") or report["first_line"])
        _emit(pipeline, COST_REGRESSION, {"sentence": sentence, "gate": report["gate"]})


def emit_stage_event(pipeline: str, event: Mapping[str, Any]) -> None:
    """What a stage or its watchdog said beside a log line: `name`, for an alarm its kind, and facts."""
    parts = ["tokenmill", str(event.get("name", "event"))]
    parts += [str(event["alarm"])] if "alarm" in event else []
    _emit(pipeline, ".".join(parts), {key: value for key, value in event.items() if key != "name"})


def _emit(pipeline: str, event: str, payload: dict[str, Any]) -> None:
    resource = {"prefect.resource.id": f"tokenmill.pipeline.{pipeline}", "prefect.resource.name": pipeline}
    emit_event(event=event, resource=resource, payload=payload)
