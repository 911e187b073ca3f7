"""Settings: one definition each, from file, environment or arguments, checked once, handed down as one value."""

from oncommit.config.load import Loaded, load, load_all
from oncommit.config.places import Found
from oncommit.config.program import FILE_NAME, Settings, SinkSettings, definitions

__all__ = ["FILE_NAME", "Found", "Loaded", "Settings", "SinkSettings", "definitions", "load", "load_all"]
