"""Charts as PNG files, by resvg of the extra ``cmsspark[plot]``."""

from __future__ import annotations

from typing import Final

from cmsspark.base.errors import UsageError

#: Pixels for each unit of a chart.
_SCALE: Final = 3


def png(svg: str, next_step: str = "pip install 'cmsspark[plot]'") -> bytes:
    """Return the picture in pixels. Raises UsageError (2) where the extra is not installed."""
    try:
        import resvg_py
    except ImportError:
        problem = "resvg_py is missing"
        raise UsageError(
            "PNG files need the extra plot", found=problem, next_step=next_step
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=_SCALE))
