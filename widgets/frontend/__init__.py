"""The common parts of all widgets: scripts and styles of the page, messages to the page, and static tables."""
