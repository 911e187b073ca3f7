"""One file a driver: check that a connection can take an event, and run a call on it."""
