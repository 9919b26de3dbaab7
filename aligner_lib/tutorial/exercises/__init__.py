"""What the learner writes: each exercise with its reference, its random inputs, and the wrong answers that it knows.

exercise.py                  what an exercise is
draw.py                      its random inputs
notebook_01.py … _08.py      the exercises, a module for each notebook; registry.py has them all
"""
