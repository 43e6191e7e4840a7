"""What every room uses: errors, dates, names, schemas, manifests, memory."""
