"""Reports of CRAB jobs by period."""
