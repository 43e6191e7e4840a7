"""Accesses and jobs: looked up in the catalogue, aggregated, merged and reconciled, without Spark."""
