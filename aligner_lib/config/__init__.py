"""A job's settings: schema, checks, profiles and composition. No module here imports torch."""
