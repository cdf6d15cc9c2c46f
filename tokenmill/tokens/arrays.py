"""NumPy arrays and names as Arrow arrays, from their buffers.

`pyarrow.array` would import pandas to find out whether its argument comes from there, and prepare, which is over in
seconds, has no other use for pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def arrow_array(values: npt.NDArray[Any], kind: pa.DataType | None = None) -> pa.Array[Any]:
    """Integers, truth values, or fixed-size bytes (dtype V). `kind`: their Arrow type, if it is not the dtype's own."""
    values = np.ascontiguousarray(values)
    if values.dtype.kind == "V":
        return _from_buffer(pa.binary(values.dtype.itemsize), values.tobytes(), len(values))
    if values.dtype.kind == "b":
        return _from_buffer(pa.bool_(), np.packbits(values, bitorder="little").tobytes(), len(values))
    own = pa.from_numpy_dtype(values.dtype)
    if kind is not None and kind != own:
        values, own = values.astype(str(kind)), kind
    return _from_buffer(own, values, len(values))


def arrow_strings(texts: Sequence[str]) -> pa.StringArray:
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(encoded)))


def _from_buffer(kind: pa.DataType, values: Any, count: int) -> pa.Array[Any]:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])
