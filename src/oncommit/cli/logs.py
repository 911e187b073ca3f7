"""The log of a program: one line an entry, on stderr."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class OneLine(logging.Formatter):
    """Times in UTC; line ends inside an entry, those of a trace too, become `` | ``."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        """The entry as one line."""
        return " | ".join(line.strip() for line in super().format(record).splitlines() if line.strip())


def log_to_stderr(*, verbose: bool = False) -> None:
    """Ours from info on, everybody else's from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("oncommit").setLevel(logging.DEBUG if verbose else logging.INFO)
