"""``command_client.py SOCKET MODULE WORD…``: ``run_command`` for a line of a shell,
with the streams that it has.
"""

from __future__ import annotations

import json
import os
import socket
import sys

if __name__ == "__main__":
    address, module, *words = sys.argv[1:]
    request = {
        "module": module,
        "words": words,
        "environ": dict(os.environ),
        "folder": os.getcwd(),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        connection.recv(100)
        code = int(connection.recv(100))
    sys.exit(code if code >= 0 else 128 - code)
