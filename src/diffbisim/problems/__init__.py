"""What is asked: one class for each criterion, with its equation and its validation."""
