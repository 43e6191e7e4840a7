"""Subsystems: each room holds its jobs, commands and pages."""
