"""Reports: text, tables and pages for people."""
