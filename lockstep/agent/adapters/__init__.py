"""Framework callbacks that report, through `lockstep.agent.api`, what no hook can observe in that framework.

Standard library only at import: an adapter uses the framework that training has imported.
"""
