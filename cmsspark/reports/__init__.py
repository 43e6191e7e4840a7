"""Reports: how results are shown to people. Knows the ground floor only, so that every room can use it."""
