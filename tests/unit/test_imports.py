"""The house rules on imports, each checked in a fresh interpreter or on the source text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("tensorflow", "keras", "great_expectations", "prefect", "transformers", "pandas", "matplotlib")

# Rooms of the engine, and the rooms that each may import besides the base modules below.
ROOMS: dict[str, set[str]] = {
    "corpus": set(),
    "tokens": {"corpus"},
    "quality": {"tokens"},
    "training": {"tokens", "telemetry"},
    "telemetry": set(),
    "cost": set(),
    "stages": {"corpus", "tokens", "quality", "training", "telemetry", "cost"},
}
BASE = {"canonical", "config", "errors", "locks", "protocol", "workspace"}
TOP = {"pipelines", "mistakes", "deployment", "runs"}
"""Compose the rooms' settings or know about runs: for stages, tasks and flows, not for rooms."""

LIGHT = [
    "tokenmill.pipelines",
    "tokenmill.workspace",
    "tokenmill.protocol",
    "tokenmill.runs",
    "tokenmill.invocations",
    "tasks.supervisor",
    "tokenmill.cost.ledger",
    "tokenmill.stages.harness",
    "tokenmill.telemetry.phases",
    "tokenmill.stages.prepare",
    "tokenmill.tokens.snapshot",
]


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = BASE | ROOMS[room] | {room} | (TOP if room == "stages" else set())
    known = set(ROOMS) | BASE | TOP
    for path in (ROOT / "tokenmill" / room).rglob("*.py"):
        for module in imported_modules(path):
            parts = module.split(".")
            assert parts[0] not in {"prefect", "docker", "flows", "tasks"}, f"{path} imports {module}"
            if parts[0] == "tokenmill" and len(parts) > 1 and parts[1] in known:
                assert parts[1] in allowed, f"{path} imports {module}"


def test_tasks_do_not_import_flows() -> None:
    for path in (ROOT / "tasks").rglob("*.py"):
        assert not {m for m in imported_modules(path) if m.split(".")[0] == "flows"}, path


def test_no_file_in_flows_shadows_another_module() -> None:
    installed = {name.split(".")[0] for name in sys.stdlib_module_names} | set(HEAVY) | {"pyarrow", "rich", "docker"}
    assert not installed & {path.stem for path in (ROOT / "flows").glob("*.py")}


@pytest.mark.parametrize("module", LIGHT)
def test_plain_modules_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""


def test_prepare_that_finds_nothing_changed_needs_neither_arrow_nor_an_encoder() -> None:
    """Such a night is worth a third of a second: what builds shards is imported when there is something to build."""
    wanted = ("pyarrow", "gigatoken", "tokenizers")
    code = f"import sys, tokenmill.stages.prepare; print([m for m in {wanted!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
