"""Text for people: plurals, units, spelling hints, progress lines and tables on terminals."""
