"""What all widgets share: their page's scripts and styles, messages to it, static tables, and a prompt's turns."""
