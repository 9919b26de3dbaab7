"""What the learner writes: each exercise with its reference, its random inputs, and the wrong answers that it knows.

exercise.py                  what an exercise is
notebook_01.py … _08.py      the exercises, a module for each notebook; registry.py has them all
checking.py                  check("gae", fn): outcomes compared (outcome.py), and what is said of them (verdict.py)
sources.py                   show_source(function)
page.py                      docs/exercises.md
"""
