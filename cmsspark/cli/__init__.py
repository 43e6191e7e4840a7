"""Options that commands and jobs share, and how a job begins and ends on the command line."""
