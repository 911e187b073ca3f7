"""`oncommit bench relay`: how many events a second go from the table to the broker, and what stands in their way.

A round is one side at work on a backlog that was written before: the relay itself, a process started as users start
it; the broker's client without a database (direct), and our adapter so (adapter); the same relay loop without a broker
(database); and what most libraries do (reference). Each side is a process of its own, alone with the servers.
"""
