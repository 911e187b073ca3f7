"""What keeps the tables in order beside delivery: delayed events, the archive's days, what has expired.

One relay leads (``leader``), on a connection of its own; nothing in here is ever waited for by a publish or a settle.
"""
