"""What is compared: chains, MDPs, timed chains and Gaussian processes, where they come from, and their costs."""
