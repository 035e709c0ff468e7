"""What every room uses: errors, validation, names, parallel work, progress, and what stops a computation."""
