"""Kinds of numpy arrays, for annotations."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Any values; docstrings say which, and the meaning of the dimensions.
Array = np.ndarray[Any, Any]
Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
