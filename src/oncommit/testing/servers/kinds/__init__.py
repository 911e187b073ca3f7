"""One module per kind of server: how to find it, run it, and ask whether it answers."""
