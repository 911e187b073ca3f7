"""The settings of a relay; they stand with all others, in ``oncommit.config``."""

from oncommit.config.relay import RelaySettings

__all__ = ["RelaySettings"]
