"""The groups of a task's accesses in columns: by site, application and user, and
whether their accesses are remote.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cmsspark.base.access import Group, Remote
from cmsspark.base.arrays import Longs
from cmsspark.counting.catalogue import Hashes, Replicas, site_hashes


@dataclass
class GroupColumns:
    """The groups of a decoder in columns. The decoder only appends groups."""

    #: The number of each distinct (site, app, user).
    numbers: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    #: For each group: the number of its (site, app, user), one of ``Remote``, and the
    #: hash of its site.
    keys: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    kinds: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    sites: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))

    def update(self, groups: list[Group]) -> None:
        """Add the new groups: those after the ones added before."""
        new = groups[len(self.keys) :]
        keys = [
            self.numbers.setdefault((group.site, group.app, group.user), len(self.numbers))
            for group in new
        ]
        self.keys = np.append(self.keys, np.array(keys, np.int64))
        self.kinds = np.append(self.kinds, np.array([group.remote for group in new], np.int64))
        self.sites = np.append(self.sites, site_hashes([group.site for group in new]))

    def remote(
        self, groups: Longs, blocks: Longs, pairs: Longs, replicas: Replicas | None
    ) -> Longs:
        """Return the remoteness of accesses, given their groups and pairs.

        Where the record does not tell, the replicas decide (rule 21).
        """
        remote = self.kinds[groups]
        by_replica = np.flatnonzero(remote == Remote.BY_REPLICA)
        if len(by_replica) and replicas is None:
            remote[by_replica] = Remote.UNKNOWN
        elif len(by_replica) and replicas is not None:
            of_blocks = np.asarray(blocks)[pairs[by_replica]]
            is_local = replicas.has_replica(of_blocks, self.sites[groups[by_replica]])
            remote[by_replica] = np.where(is_local, Remote.NO, Remote.YES)
        return remote
