"""Who is told of what: notification blocks and automations, made of each pipeline's `notify` section."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.notifications import AppriseNotificationBlock, CustomWebhookNotificationBlock
from prefect.events import AutomationCore, EventTrigger, Posture
from prefect.events.actions import SendNotification
from pydantic import SecretStr

from tasks.notices import COST_REGRESSION, LOW_UTILISATION
from tokenmill.deployment import NotifySettings, Occasion

_STATES: dict[Occasion, set[str]] = {
    "failure": {"Failed", "UserError", "Refused", "Crashed"},
    "budget": {"StoppedByBudget"},
}
_EVENTS: dict[Occasion, str] = {"cost_regression": COST_REGRESSION, "low_utilisation": LOW_UTILISATION}
_OF_A_RUN = "{{ flow_run.name }}: {{ flow_run.state.name }}. {{ flow_run.state.message }}"
_OF_AN_EVENT = "{{ event.resource.name }}: {{ event.payload.sentence }}"


def notification_automations(pipeline: str, notify: NotifySettings) -> Iterator[AutomationCore]:
    """One automation an occasion, that sends to each block; the blocks are saved on the server first."""
    blocks = [_save(block, f"tokenmill-{pipeline}-{kind}".replace("_", "-")) for kind, block in _blocks(notify)]
    for occasion in notify.occasions if blocks else ():
        words = occasion.replace("_", " ")
        body = _OF_AN_EVENT if occasion in _EVENTS else _OF_A_RUN
        yield AutomationCore(
            name=f"tokenmill: tell of {words}: {pipeline}",
            description=f"Made from the `notify` section of the pipeline {pipeline}.",
            trigger=_trigger(pipeline, occasion),
            actions=[
                SendNotification(block_document_id=block, subject=f"tokenmill, {pipeline}: {words}", body=body)
                for block in blocks
            ],
        )


def _blocks(notify: NotifySettings) -> Iterator[tuple[str, NotificationBlock]]:
    if notify.webhook is not None:
        content = {"subject": "{{subject}}", "body": "{{body}}"}
        yield "webhook", CustomWebhookNotificationBlock(name="tokenmill", url=notify.webhook, json_data=content)
    if notify.email is not None:
        yield "email", AppriseNotificationBlock(url=SecretStr(notify.email))


def _save(block: NotificationBlock, name: str) -> UUID:
    saved = block.save(name, overwrite=True)
    assert isinstance(saved, UUID)
    return saved


def _trigger(pipeline: str, occasion: Occasion) -> EventTrigger:
    if occasion in _EVENTS:
        match, expect = {"prefect.resource.id": f"tokenmill.pipeline.{pipeline}"}, {_EVENTS[occasion]}
    else:
        # A flow run's name begins with its pipeline (flows.retrain).
        match = {"prefect.resource.id": "prefect.flow-run.*", "prefect.resource.name": f"{pipeline} 2*"}
        expect = {f"prefect.flow-run.{state}" for state in _STATES[occasion]}
    return EventTrigger(
        match=match, for_each={"prefect.resource.id"}, expect=expect, posture=Posture.Reactive, threshold=1
    )
