"""The settings of a relay; they stand with all others, in ``oncommit.config``."""

from oncommit.config.relay import CONTINUE, PARK_KEY, RelaySettings

__all__ = ["CONTINUE", "PARK_KEY", "RelaySettings"]
