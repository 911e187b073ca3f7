"""Free ports on 127.0.0.1 that stay ours.

Failure story: between choosing a port and the server's bind, and again between a kill and the restart on the
same port, anybody may take it. Three things keep that rare: ports come from below the range that the kernel hands
out to outgoing connections; a port is probed by binding it; and runs of ours claim it by a name in the abstract
socket namespace, which needs no file and vanishes with the process that holds it. What still gets lost is noticed
(the server's bind fails) and `Server.start` takes other ports.
"""

from __future__ import annotations

import random
import socket
from contextlib import closing
from dataclasses import dataclass

from oncommit.testing.servers.errors import ServerError

LOWEST, HIGHEST = 20_000, 32_000


@dataclass(frozen=True)
class ClaimedPort:
    """A port and the claim to it."""

    number: int
    claim: socket.socket

    def release(self) -> None:
        """Let others have it."""
        self.claim.close()


def claim_port() -> ClaimedPort:
    """Claim a port that nobody listens on."""
    for number in random.sample(range(LOWEST, HIGHEST), 200):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0oncommit-port-{number}")
            with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
                # As servers do it: connections of the past in TIME_WAIT don't count, a listener does.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", number))
        except OSError:
            claim.close()
            continue
        return ClaimedPort(number, claim)
    raise ServerError(f"No free port among 200 tried between {LOWEST} and {HIGHEST} on 127.0.0.1.")
