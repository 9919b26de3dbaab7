"""A job's settings: the schema, what makes sense of it, profiles, and how they are composed. Imports no torch."""
