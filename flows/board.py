"""`tokenmill board`: TensorBoard over a run's folder, on loopback: scalars, texts, utilisation and profiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console

from flows.places import find_run
from tokenmill.errors import UserError
from tokenmill.pipelines import PipelineFile

LOOPBACK = "127.0.0.1"


def board_command(folder: Path, port: int) -> list[str]:
    """TensorBoard over `folder`, for this machine alone."""
    where = ["--logdir", str(folder), "--host", LOOPBACK, "--port", str(port)]
    return [sys.executable, "-m", "tensorboard.main", *where, "--load_fast=false"]


def show_board(console: Console, file: PipelineFile, run: str, port: int) -> None:
    """Becomes TensorBoard; Ctrl-C ends it. `UserError` if there is nothing to show."""
    workspace, found = find_run(file, run)
    folder = workspace.run(found.id)
    if not (folder / "tensorboard").is_dir():
        raise UserError(f"run '{folder.name}' has no TensorBoard files yet: it has not begun to train")
    console.print(f"TensorBoard of run {folder.name} on http://{LOOPBACK}:{port}/ (Ctrl-C ends it)", highlight=False)
    command = board_command(folder, port)
    os.execv(command[0], command)
