"""What models wrote: a run's responses, preference pairs, a chat, and static tables of responses."""
