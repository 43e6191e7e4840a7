"""What cost a run time or memory, and advice from it."""
