"""The UI as a person uses it, in a real browser: `make test-browser`. With TOKENMILL_SCREENSHOTS, pictures go there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.integration.commands import write_pipelines
from tests.integration.serving import eventually, free_port, served
from tests.integration.test_whole_flow import TRAINING, write_corpus

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]

CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 90_000
"""For a page of a server that shares its cores with training."""


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1200, "height": 800})
        opened.set_default_timeout(PATIENCE_MS)
        yield opened
        browser.close()


def photograph(page: Page, name: str) -> None:
    folder = os.environ.get("TOKENMILL_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(1500)
        page.screenshot(path=Path(folder) / f"ui-{name}.png")


def test_from_the_form_to_the_cost_report(tmp_path: Path, page: Page) -> None:
    write_corpus(tmp_path)
    training = {**TRAINING, "length": {"steps": 900_000}, "threads": 1, "checkpoint": {"every_seconds": 5}}
    write_pipelines(tmp_path, training=training, checks={"max_refused_pct": 50})
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    with served(tmp_path, port) as (serve, server):
        deployment = server.call("/deployments/name/retrain/on-demand")["id"]
        page.goto(f"{site}/deployments")
        expect(page.get_by_text("on-demand").first).to_be_visible(timeout=PATIENCE_MS)
        # The form: a choice of pipelines, and a wrong value is refused before anything starts.
        page.goto(f"{site}/deployments/deployment/{deployment}/run")
        page.get_by_text("A pipeline of the file.").wait_for()
        page.locator(".p-select-button__control").first.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator(".p-select-button__value").first).to_contain_text("small")
        page.get_by_role("button", name="Overrides").click()
        page.get_by_role("button", name="int", exact=True).first.click()
        steps = page.locator("input[type=number]").first
        steps.fill("0")
        photograph(page, "form")
        page.get_by_role("button", name="Submit").click()
        page.wait_for_timeout(3000)
        assert server.runs() == []
        steps.fill("6000")
        page.get_by_role("button", name="Submit").click()
        eventually(lambda: server.runs(), serve)
        (run,) = server.runs()
        assert run["parameters"]["overrides"]["steps"] == 6000
        # The progress of training moves while one looks.
        page.goto(f"{site}/artifacts/key/progress-train-small")
        eventually(lambda: server.call("/artifacts/filter", {"artifacts": {"key": {"any_": ["progress-train-small"]}}}))
        page.goto(f"{site}/runs/flow-run/{run['id']}?tab=Artifacts")
        shown = page.get_by_text(re.compile(r"train \(|\d+ ?%")).first
        shown.wait_for()
        before = progress(server)
        photograph(page, "progress")
        eventually(lambda: progress(server) > before or before == 100, serve)
        # The logs of the stages are live, and the run says its pipeline, night and run.
        page.goto(f"{site}/runs/flow-run/{run['id']}")
        expect(page.get_by_text(re.compile(r"small 2\d{3}-\d\d-\d\d \d\d:\d\d run [0-9a-f]{12}")).first).to_be_visible(
            timeout=PATIENCE_MS
        )
        photograph(page, "timeline")
        eventually(lambda: server.state(run["id"]) == "Completed", serve, seconds=400)
        # The cost report, and its page behind the link.
        (cost,) = server.call("/artifacts/filter", {"artifacts": {"key": {"any_": ["cost-report-small"]}}})
        page.goto(f"{site}/artifacts/artifact/{cost['id']}")
        expect(page.get_by_text("per million tokens").first).to_be_visible(timeout=PATIENCE_MS)
        photograph(page, "cost-report")
        (link,) = server.call("/artifacts/filter", {"artifacts": {"key": {"any_": ["report-small"]}}})
        page.goto(f"{site}/artifacts/artifact/{link['id']}")
        page.get_by_role("link", name="the night's report").first.wait_for()
        page.goto(re.search(r"\((http://[^)]+)\)", link["data"]).group(1))  # type: ignore[union-attr]
        expect(page.get_by_text("per million tokens").first).to_be_visible(timeout=PATIENCE_MS)
        (docs,) = server.call("/artifacts/filter", {"artifacts": {"key": {"any_": ["data-docs-small"]}}})
        answer = page.goto(re.search(r"\((http://[^)]+)\)", docs["data"]).group(1))  # type: ignore[union-attr]
        assert answer is not None
        assert answer.status == 200
        (board,) = server.call("/artifacts/filter", {"artifacts": {"key": {"any_": ["tensorboard-small"]}}})
        page.goto(re.search(r"\((http://[^)]+)\)", board["data"]).group(1))  # type: ignore[union-attr]
        expect(page).to_have_title(re.compile("TensorBoard"), timeout=PATIENCE_MS)
        photograph(page, "tensorboard")


def progress(server: object) -> float:
    found = server.call("/artifacts/filter", {"artifacts": {"key": {"any_": ["progress-train-small"]}}})  # type: ignore[attr-defined]
    return max(float(artifact["data"]) for artifact in found)
