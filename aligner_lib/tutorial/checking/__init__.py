"""Whether a learner's function is right: its outcomes compared with the reference's, and the verdict in words."""
