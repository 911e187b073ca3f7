"""The only room that knows PostgreSQL."""
