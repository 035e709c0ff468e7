"""Slow, literal implementations to compare with: nothing here imports diffbisim, and nothing is clever."""
