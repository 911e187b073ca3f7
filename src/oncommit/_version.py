"""The one place that knows the version; hatchling reads it from here."""

__version__ = "0.1.0.dev0"
