"""Direct preference optimization and its relatives."""
