"""What the project makes for itself."""
