"""The account of a step as it was made in the training process, before marks: the oracle of the accounting's tests.

Kept as it was, so that what is said of a step stays what it was. Not part of the program.
"""
