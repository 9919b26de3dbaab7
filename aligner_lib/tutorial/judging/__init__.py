"""Notebook 13: a language model as judge, and how the judge is measured.

labelled   forty answers with a reader's labels
served     the model of the profile behind an endpoint, or its recorded verdicts
agreement  the judge beside trivial judges
"""
