"""Made days: ordinary ones, and hostile ones with a hand-written expectation beside each record."""
