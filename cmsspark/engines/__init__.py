"""How work is run: processes of this host and Spark; sessions, tasks and scans."""
