"""``cmsspark daily``: its settings, its state, the work, and who is notified of it."""
