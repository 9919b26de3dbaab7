"""The course and the docs as a site of static pages."""
