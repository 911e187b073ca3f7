"""One file a broker, behind one contract."""
