"""What comes back: the results of all solvers, gradients, contributions, pages and files."""
