"""Formats: JSON lines, Avro and CSV, read by compiled code where they are plain and
exactly where they are not.
"""
