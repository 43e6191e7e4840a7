"""Watching runs: what Spark and the processes of a run used, what that means, and what to change."""
