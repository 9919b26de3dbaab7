"""Views of models' texts: responses of a run, preference pairs, a chat, and static tables of responses."""
