"""The public functions that compute distances."""
