"""What `auto` becomes on which hardware."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_helpers import training

from tokenmill.training import hardware


@pytest.mark.parametrize(
    ("flags", "gpus", "expected"),
    [
        ({"avx2"}, [], "float32"),
        ({"avx512_bf16"}, [], "bfloat16"),
        ({"amx_bf16", "avx512_bf16"}, [], "bfloat16"),
        ({"avx512_bf16"}, [(7, 0)], "float16"),
        ({"avx512_bf16"}, [(6, 1)], "float32"),
        (set(), [(9, 0), (8, 0)], "bfloat16"),
        (set(), [(9, 0), (7, 5)], "float16"),
    ],
)
def test_precision(flags: set[str], gpus: list[tuple[int, int]], expected: str) -> None:
    precision, reason = hardware.choose_precision(training(precision="auto"), frozenset(flags), gpus)
    assert precision == expected
    assert reason
    assert hardware.choose_precision(training(precision="float32"), frozenset(flags), gpus)[0] == "float32"


def test_cpu_flags(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert hardware.cpu_flags(path) == {"fpu", "avx2", "amx_bf16"}
    assert hardware.cpu_flags(tmp_path / "missing") == frozenset()
