"""Start-up noise of TensorFlow and friends on standard error: known, harmless, and in the way of what matters."""

from __future__ import annotations

import re

_NOISE = re.compile(
    "|".join(
        (
            r"oneDNN custom operations are on",
            r"This TensorFlow binary is optimized to use available CPU instructions",
            r"To enable the following instructions: ",
            r"Could not find cuda drivers",
            r"Unable to register cu(FFT|DNN|BLAS) factory",
            r"computation placer already registered",
            r"All log messages before absl::InitializeLog\(\) is called",
            r"Cannot dlopen some GPU libraries",
            r"failed call to cuInit",
            r"XLA service 0x[0-9a-f]+ initialized for platform",
            r"StreamExecutor device \(\d+\): Host",
            r"Compiled cluster using XLA!",
            r"disabling MLIR crash reproducer",
            r"(PjRt|TFRT) .*(client|runtime) (is )?(not )?(created|initialized|registered)",
            r"Local rendezvous is aborting with status: OUT_OF_RANGE",
            r"Profiler session (initializing|started|tear down|collecting)",
        )
    )
)


def is_noise(text: str) -> bool:
    return _NOISE.search(text) is not None
