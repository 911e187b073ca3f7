"""Loops: what runs until it is stopped."""
