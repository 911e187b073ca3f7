"""One file a driver: the same business transaction as an application that uses this driver would write it.

Each gives its writers, one a connection. A writer does one transaction; where it is handed something to add with, it
also adds the order's event, and that is the only difference between the two sides of the comparison.
"""
