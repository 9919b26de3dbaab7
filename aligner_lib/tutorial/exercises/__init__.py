"""The exercises: for each function that the learner writes, a reference function, random inputs, and planted mistakes.

exercise.py                  the definition of an exercise
draw.py                      random inputs
outcome.py                   the outcome of a function on an input, and the difference between two outcomes
recognition.py               mistakes that are recognised by their outputs
notebook_01.py … _11.py      the exercises, a module for each notebook
registry.py                  all exercises by name
"""
