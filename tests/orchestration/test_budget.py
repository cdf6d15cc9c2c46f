"""A run that is estimated over its budget is not begun."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.night import NightOver
from tests.golden.cost_report import PIPELINE, golden_report
from tokenmill.runs import open_run
from tokenmill.workspace import Workspace


@pytest.mark.integration
@pytest.mark.usefixtures("prefect_server")
def test_a_run_over_its_budget_is_refused_before_its_first_attempt_only(tmp_path: Path) -> None:
    from tasks.train import refuse_over_budget

    workspace = Workspace.open(str(tmp_path))
    golden_report(workspace)  # measured nights of $0.0033
    assert PIPELINE.cost != "unpriced"

    def night(budget: str | None, attempts: int = 0) -> SimpleNamespace:
        pipeline = PIPELINE.model_copy(
            update={"cost": PIPELINE.cost.model_copy(update={"budget_usd": budget and Decimal(budget)})}
        )
        run = open_run(workspace, "demo", pipeline, "77c1d2e3f4a5b6c7", None)
        return SimpleNamespace(
            pipeline=pipeline,
            run=run.model_copy(update={"attempts": attempts}),
            workspace=workspace,
        )

    refuse_over_budget(night(None))
    refuse_over_budget(night("1.00"))
    refuse_over_budget(night("0.001", attempts=1))
    with pytest.raises(
        NightOver, match=r"cost\.budget_usd: the run is estimated at \$0\.0033.* over the budget"
    ) as over:
        refuse_over_budget(night("0.001"))
    assert over.value.outcome == "user_error"
