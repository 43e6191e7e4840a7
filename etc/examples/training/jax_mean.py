"""Workers that meet in JAX: the launcher's variables are the arguments of
``jax.distributed.initialize``::

    cmsspark lab train run etc/examples/training/jax_mean.py --workers 2

Each worker has a number, and all get the mean.
"""

from __future__ import annotations

import os

import jax
import numpy as np


def main() -> None:
    """Meet the others, and print the mean of all workers' numbers."""
    # Between processors; GPUs use NCCL.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX reads the address itself, but not the numbers.
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        int(os.environ["JAX_NUM_PROCESSES"]),
        int(os.environ["JAX_PROCESS_ID"]),
    )
    from jax.experimental import multihost_utils

    numbers = multihost_utils.process_allgather(np.float32(jax.process_index()))
    print(f"worker {jax.process_index()} of {jax.process_count()}: mean {numbers.mean()}")


if __name__ == "__main__":
    main()
