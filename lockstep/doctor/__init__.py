"""The self-test of a node's environment: what slows a job before its first step.

Standard library only, because it runs in training images. `facts` reads a node, `checks` evaluates one node's facts,
and `fleet_facts` finds differences between nodes. Facts are stored in a file, and evaluating them needs nothing else.
"""
