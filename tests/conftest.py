"""Two virtual CPUs, set before TensorFlow is first used, so that replicas can be tested on any machine."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="session", autouse=True)
def _two_virtual_cpus(request: pytest.FixtureRequest) -> None:
    if not any(item.get_closest_marker("tensorflow") for item in request.session.items):
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
