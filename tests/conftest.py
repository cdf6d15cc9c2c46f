"""Two virtual CPUs, set before TensorFlow is first used, so that replicas can be tested on any machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="session", autouse=True)
def _two_virtual_cpus(request: pytest.FixtureRequest) -> None:
    if not any(item.get_closest_marker("tensorflow") for item in request.session.items):
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture(scope="session")
def image_lock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image.lock of the engine image that `make test-containers` built and pushed."""
    from tasks.image_lock import write_lock
    from tasks.images import resolve
    from tests.containers.engine import IMAGE

    path = tmp_path_factory.mktemp("lock") / "image.lock"
    write_lock(path, resolve(IMAGE))
    return path
