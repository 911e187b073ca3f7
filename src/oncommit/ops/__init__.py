"""What operators look at and do: the one API under the command line and the dashboard."""
