"""Conveniences for the frameworks that people use; each file needs its framework installed."""
