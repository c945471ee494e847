"""Callbacks for frameworks that call them: each reports through `lockstep.agent.api` what no hook can see there.

Standard library only at import: an adapter finds its framework where training has imported it.
"""
