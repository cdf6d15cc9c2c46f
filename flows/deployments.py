"""Deployments of the flow, and the automations that bring it back. All of it is made from pipelines.yaml, idempotently.

* `retrain/on-demand`: any pipeline, from the form in Prefect's UI.
* `retrain/<pipeline>`: each pipeline that has a schedule, on its cron and time zone.
* A flow run that stays silent for three heartbeats is marked Crashed.
* A flow run that crashed or was interrupted starts its pipeline again; what it had finished is not done again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas import StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.events import AutomationCore, EventTrigger, Posture
from prefect.events.actions import ChangeFlowRunState, PauseAutomation, RunDeployment
from prefect.schedules import Cron
from prefect.types.entrypoint import EntrypointType

from flows.form import in_the_file
from flows.notifications import notification_automations
from flows.places import loadable
from flows.pools import Pool, ensure_pool
from flows.retrain import STATES, retrain
from tokenmill.pipelines import Pipeline, PipelineFile

ON_DEMAND = "on-demand"
ON_DEMAND_NAME = f"{retrain.name}/{ON_DEMAND}"
HEARTBEAT_SECONDS = 30
SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS
RESUME_DELAY = timedelta(seconds=5)
GOES_ON = "tokenmill: a crashed or interrupted pipeline goes on"
DEATHS, DEATH_WINDOW = 10, timedelta(minutes=10)
"""So many flow runs dead within so long, and nothing is started again until the next `deploy` or `serve`."""
_OURS = {"prefect.resource.role": "flow", "prefect.resource.name": retrain.name}


def make_deployments(file: PipelineFile) -> list[RunnerDeployment]:
    """On-demand first, then the scheduled ones. The form offers the pipelines of the file and no others."""
    path = str(file.path)
    deployments = [_deployment(ON_DEMAND, {"file": path}, "Any pipeline, when you want it.")]
    pipelines = {name: found for name, found in loadable(file).items() if isinstance(found, Pipeline)}
    _fill_form(deployments[0], sorted(file.pipelines), pipelines)
    for name, pipeline in pipelines.items():
        if pipeline.schedule.cron is not None:
            schedule = Cron(pipeline.schedule.cron, timezone=pipeline.schedule.timezone)
            parameters = {"pipeline": name, "file": path}
            deployments.append(_deployment(name, parameters, f"The pipeline {name}, on schedule.", schedule=schedule))
    return deployments


def _fill_form(deployment: RunnerDeployment, names: list[str], pipelines: dict[str, Pipeline]) -> None:
    """The pipelines of the file and no others as a choice, and beside each override what they have for it."""
    schema = deployment._parameter_openapi_schema
    schema.properties["pipeline"]["enum"] = names
    fields = schema.definitions["Overrides"]["properties"]
    for name, values in in_the_file(pipelines):
        fields[name]["description"] += f" In the file: {values}." if values else ""


def _deployment(name: str, parameters: dict[str, Any], description: str, **more: Any) -> RunnerDeployment:
    made = retrain.to_deployment(
        name,
        parameters=parameters,
        description=description,
        paused=False,
        entrypoint_type=EntrypointType.MODULE_PATH,
        tags=["tokenmill"],
        **more,
    )
    assert isinstance(made, RunnerDeployment)
    return made


def make_automations(on_demand: UUID) -> list[AutomationCore]:
    ends = {f"prefect.flow-run.{name}" for name in {name for _, name in STATES.values()} | {"Crashed", "Cancelling"}}
    heartbeat = "prefect.flow-run.heartbeat"
    flow_runs = {"prefect.resource.id": "prefect.flow-run.*"}
    silent = EventTrigger(
        match=flow_runs,
        match_related=_OURS,
        for_each={"prefect.resource.id"},
        after={heartbeat},
        expect={heartbeat} | ends,
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=SILENCE_SECONDS),
    )
    lost = EventTrigger(
        match=flow_runs,
        match_related=_OURS,
        for_each={"prefect.resource.id"},
        expect={"prefect.flow-run.Crashed", "prefect.flow-run.Interrupted"},
        posture=Posture.Reactive,
        threshold=1,
    )
    again = RunDeployment(
        source="selected",
        deployment_id=on_demand,
        # Not `fresh`: what a fresh start began is what goes on.
        parameters={name: _parameter(name) for name in retrain.parameters.properties if name != "fresh"},
        schedule_after=RESUME_DELAY,
    )
    crashed = ChangeFlowRunState(
        state=StateType.CRASHED,
        name="Crashed",
        message=f"no heartbeat for {SILENCE_SECONDS} seconds: its process or its machine is gone",
    )
    return [
        AutomationCore(
            name="tokenmill: a silent flow run is marked as crashed",
            description="Frees its slot; the automation below starts the pipeline again.",
            trigger=silent,
            actions=[crashed],
        ),
        AutomationCore(
            name=GOES_ON,
            description="Starts the pipeline again; everything that was committed is found and not done again.",
            trigger=lost,
            actions=[again],
        ),
    ]


def give_up(goes_on: UUID) -> AutomationCore:
    """Flow runs that die before the flow itself can count its deaths (`tasks.deaths`): not for ever."""
    dying = EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related=_OURS,
        expect={"prefect.flow-run.Crashed"},
        posture=Posture.Reactive,
        threshold=DEATHS,
        within=DEATH_WINDOW,
    )
    return AutomationCore(
        name="tokenmill: flow runs that die one after the other are not started again",
        description=f"{DEATHS} crashes within {DEATH_WINDOW}: pauses the automation that starts them again.",
        trigger=dying,
        actions=[PauseAutomation(source="selected", automation_id=goes_on)],
    )


def _parameter(name: str) -> dict[str, Any]:
    """The same value that the lost flow run had."""
    template = f"{{{{ flow_run.parameters.get('{name}') | tojson }}}}"
    return {"__prefect_kind": "json", "value": {"__prefect_kind": "jinja", "template": template}}


def deploy(file: PipelineFile, pool: Pool | None = None) -> dict[str, UUID]:
    """Create or update everything on the server; the deployments' ids by full name. Without a pool, `serve` runs it."""
    if pool is not None:
        ensure_pool(pool)
    ids = {}
    for deployment in make_deployments(file):
        if pool is not None:
            deployment.job_variables = pool.job_variables(file)
            applied = deployment.apply(work_pool_name=pool.name, image=pool.image)
        else:
            applied = deployment.apply()
        assert isinstance(applied, UUID)
        ids[deployment.full_name] = applied
    automations = make_automations(ids[ON_DEMAND_NAME])
    for name, pipeline in loadable(file).items():
        if isinstance(pipeline, Pipeline):
            automations += notification_automations(name, pipeline.notify)
    with get_client(sync_client=True) as client:
        for found in client.read_automations():
            if found.name.startswith("tokenmill: "):
                client.delete_automation(found.id)
        created = {automation.name: client.create_automation(automation) for automation in automations}
        client.create_automation(give_up(created[GOES_ON]))
    return ids
