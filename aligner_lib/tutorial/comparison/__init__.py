"""What is measured of policies and of preference pairs, with intervals."""
