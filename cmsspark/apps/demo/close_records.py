"""AAA records of today's collectors (``aaa-ng``): one for each file close, of the
Python and of the Go collector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import json

from cmsspark.apps.demo.activity import Activity
from cmsspark.apps.demo.damaged_files import break_lines
from cmsspark.apps.demo.users import domain


def close_lines(
    activity: Activity, rng: np.random.Generator, *, is_flat: bool = True
) -> list[str]:
    """Records as they are sent (``is_flat``), or with their fields in ``data``. A third
    is of the Go collector.
    """
    lines = []
    for number, record in enumerate(_records(activity)):
        metadata = record.pop("metadata")
        if number % 3 == 0:
            # The Go collector leaves out what is empty or 0.
            record = {name: value for name, value in record.items() if value not in (None, "", 0)}
            record.setdefault("file_lfn", "")
        # Some records have no data, and broken ones are broken there.
        document = (
            {**record, "metadata": metadata} if is_flat else {"data": record, "metadata": metadata}
        )
        lines.append(json.encode(document).decode())
    if is_flat:
        return [
            line if bin_ != 1 else line[: len(line) * 3 // 5]
            for line, bin_ in zip(lines, activity.bins, strict=True)
        ]
    return break_lines(lines, activity.bins)


def _records(activity: Activity) -> Any:
    columns = zip(
        activity.lfns,
        activity.sizes,
        activity.dns,
        activity.apps,
        activity.sites,
        activity.clients,
        activity.read_bytes,
        activity.write_bytes,
        activity.starts,
        activity.ends,
        activity.timestamps,
        activity.ids,
        activity.noise,
        strict=True,
    )
    for (
        lfn,
        size,
        dn,
        app,
        site,
        client,
        read,
        written,
        start,
        end,
        stamp,
        unique,
        noise,
    ) in columns:
        is_crab = "crab" in app
        server = site or ("UNKNOWN" if noise % 2 else "")
        yield {
            "file_lfn": lfn
            if lfn or noise % 4
            else ("unknown" if noise % 8 else "missing directory"),
            "file_size": size,
            "start_time": start,
            "end_time": end,
            "read_bytes": read,
            "read_bytes_at_close": read // 2,
            "write_bytes": written,
            "write_bytes_at_close": written,
            "read_operations": noise % 999,
            "read_vector_bytes": read - read // 2,
            "user_dn": dn,
            "user": (dn or "").rpartition("/CN=")[2],
            "site_name": server if noise % 7 else "",
            "server_site": server,
            "server_host": f"xrd{noise % 97:03d}",
            "server_domain": domain(site),
            "client_host": f"wn{noise % 9999:04d}",
            "client_domain": domain(client),
            "operation": "read" if read else "unknown",
            "user_protocol": "gsi",
            "fallback": True,
            "unique_id": unique,
            "CRAB_Id": str(noise % 999) if is_crab else None,
            "CRAB_Workflow": f"260115:{noise % 99}:crab_ana" if is_crab else None,
            "src_site": site and f"CRIC-{site}",
            "dst_site": client and f"CRIC-{client}",
            "src_site_status": "resolved" if noise % 5 else None,
            "dst_site_status": ("resolved", "resolved_ip", "ambiguous", "unknown_domain", None)[
                noise % 5
            ],
            "traffic_scope": "LAN" if site == client else "WAN",
            "metadata": {
                "producer": "cms",
                "type": "aaa-ng",
                "type_prefix": "raw",
                "timestamp": stamp,
                "host": f"collector{noise % 3}",
                "_id": unique,
            },
        }
