"""A workshop without a network: the bundle, its manifest, and how a bundle is packed."""
