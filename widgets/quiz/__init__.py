"""The widget for a notebook's questions. The texts are in aligner_lib/tutorial/quiz/."""
