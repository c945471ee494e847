"""The self-test of a node's environment: what slows a job before its first step.

Standard library only: it runs in training images. `facts` reads what is there, `checks` judges one node's facts,
`fleet` what should be equal on all nodes and is not. Facts are a file that travels; judging needs nothing else.
"""
