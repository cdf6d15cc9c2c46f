from __future__ import annotations

from pathlib import Path

from tests.golden.cost_report import GOLDEN, forms, golden_report
from tokenmill.workspace import Workspace


def test_the_golden_report_is_made_again_to_the_byte(tmp_path: Path) -> None:
    """`make golden` writes it anew."""
    made = forms(golden_report(Workspace.open(str(tmp_path))))
    for name, text in made.items():
        assert text == (GOLDEN / name).read_text(encoding="utf-8"), f"{name} differs from tests/golden: make golden"
