"""Publishing: documents from stored rows, an outbox, and sinks that confirm."""
