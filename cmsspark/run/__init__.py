"""One run: what it was asked for, its inputs, its day of logs or dumps, its result, its history."""
