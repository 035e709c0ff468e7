"""diffbisim: distances between Markov processes that respect time, and their exact gradients."""

__version__ = "0.1.0.dev0"
