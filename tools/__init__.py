"""Programs of this project that are no part of the package: generators of its files."""
