"""The update on several workers is that on one; what is not finite on one of them is skipped on all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from worker_updates import updates

from tasks.workers import cluster_environments, loopback_addresses, shared_cores

pytestmark = [pytest.mark.tensorflow, pytest.mark.integration]


def test_two_workers_make_the_update_of_one_and_skip_together(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(Path(__file__).parent)])}
    environment |= shared_cores({"TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}, 2)
    command = [sys.executable, str(Path(__file__).with_name("worker_updates.py")), str(tmp_path / "worker"), "2"]
    workers = [
        subprocess.Popen(command, env={**environment, **told}, stderr=subprocess.PIPE)
        for told in cluster_environments(loopback_addresses(2))
    ]
    expected = updates(1, 0, micro=4)
    errors = [worker.communicate(timeout=120)[1].decode() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors
    chief, other = (np.load(tmp_path / f"worker-{index}.npz") for index in range(2))
    for name in chief:
        assert chief[name].tobytes() == other[name].tobytes(), name
    assert chief["applied"].tolist() == [True, False, True]
    assert chief["loss_scale"] == expected["loss_scale"] == 0.5
    assert str(chief["text"]) == "worker 0 says so"
    assert chief["decision"].tolist() == [1, 5]
    np.testing.assert_allclose(chief["loss"][[0, 2]], expected["loss"][[0, 2]], rtol=1e-3)
    for name in expected:
        if name not in ("loss", "text", "decision"):
            np.testing.assert_allclose(chief[name], expected[name], rtol=2e-2, atol=3e-3, err_msg=name)
