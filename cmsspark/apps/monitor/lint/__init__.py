"""What makes a script slow or large, before it runs."""
