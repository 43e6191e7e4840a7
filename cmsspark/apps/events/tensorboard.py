"""Metrics of a training for TensorBoard, written by tensorboardX, which is imported only where they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cmsspark.base.errors import UsageError

_FLUSH_SECONDS: Final = 5


def require_tensorboard() -> None:
    """Raises UsageError (2) that names the extra where tensorboardX is not installed."""
    try:
        import tensorboardX
    except ImportError as error:
        raise UsageError(
            "metrics for TensorBoard need tensorboardX", found=f"no module {error.name}",
            next_step="pip install 'cmsspark[tensorboard]'",
        ) from None  # fmt: skip
    del tensorboardX


class TensorBoardMetrics:
    """Writes the numbers of each round of a training into event files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Write the numbers of a round at its step; they are on disk some seconds later."""
        for name, value in line.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, int(line["step"]))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
