"""A workshop without a network: the bundle, and what is handed out."""
