"""Settings and builders that the kinds with pairs of responses share."""
