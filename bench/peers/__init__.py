"""The day's tables by other engines: read as they read best, counted by ``docs/counting.md``."""
