"""Measuring: the workloads, the loads, and what is made of their figures. `oncommit bench` is its command line."""
