"""The course and the docs as a static web site."""
