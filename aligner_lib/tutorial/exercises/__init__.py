"""The exercises: for each function that the learner writes, a reference function, random inputs, and planted mistakes.

exercise.py                  the definition of an exercise
draw.py                      random inputs
notebook_01.py … _11.py      the exercises, a module for each notebook
registry.py                  all exercises by name
"""
