"""A job's settings: schema, checks, profiles and composition. Imports no torch."""
