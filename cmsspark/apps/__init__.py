"""The subsystems, each with its jobs, its pages and its commands."""
