"""A small transformer over the particles of a sample, in PyTorch: a baseline to compare
the package's own networks with. Run it on one worker or more::

    cmsspark lab train run etc/examples/training/particle_transformer.py --workers 2 -- SAMPLE

Every worker is a rank of DistributedDataParallel. The model, by worker 0, is
``transformer.pt``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from cmsspark.apps.events.network_data import SampleReader, torch_dataset


class ParticleTransformer(nn.Module):
    """Two layers of attention over the particles that exist, then their mean."""

    def __init__(self, columns: int, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(columns, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width + features, classes)

    def forward(self, hlf: Any, particles: Any) -> Any:
        """Return the scores of events; rows that are all zero are padding."""
        is_particle = particles.abs().sum(-1) > 0
        is_particle[:, 0] = True  # attention needs a particle
        state = self.encoder(self.embed(particles), src_key_padding_mask=~is_particle)
        weights = is_particle.unsqueeze(-1).float()
        mean = (state * weights).sum(1) / weights.sum(1)
        return self.out(torch.cat([mean, hlf], -1))


def main() -> None:
    """Train for some epochs, and print the mean loss of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--loaders", type=int, default=2, help="processes that read, a worker")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    reader = SampleReader(arguments.sample / "train", arguments.batch, low_level=True)
    if arguments.dry_run:
        return
    torch.manual_seed(0)
    rows, columns = reader.layout.shape
    model: Any = ParticleTransformer(
        columns, reader.layout.hlf_count, len(reader.layout.class_names)
    )
    if reader.count > 1:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(
        torch_dataset(reader), batch_size=None, num_workers=arguments.loaders
    )
    for epoch in range(arguments.epochs):
        sums = [0.0, 0.0]
        for batch in loader:
            # Attention costs the square of the length: no longer than the longest event.
            longest = int(batch["low_level"].abs().sum(-1).gt(0).nonzero()[:, 1].max()) + 1
            scores = model(batch["hlf"], batch["low_level"][:, : min(longest, rows)])
            losses = nn.functional.cross_entropy(scores, batch["label"], reduction="none")
            loss = (losses * batch["weight"]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums = [sums[0] + loss.item() * len(losses), sums[1] + len(losses)]
        print(f"epoch {epoch + 1}: loss {sums[0] / sums[1]:.4f}", flush=True)
    if reader.place == 0:
        output = Path(os.environ.get("CMSSPARK_TRAIN_OUTPUT", "."))
        plain = model.module if reader.count > 1 else model
        torch.save(plain.state_dict(), output / "transformer.pt")
    if reader.count > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
