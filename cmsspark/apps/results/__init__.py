"""Commands on stored results: paths, runs, status, SQL, clean-up."""
