"""A workshop without a network: the bundle, its manifest, and the packing of a bundle."""
