"""``cmsspark ask``: questions about datasets and sites to what is stored."""
