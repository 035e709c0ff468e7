"""Smaller processes: exact quotients, compression and abstraction."""
