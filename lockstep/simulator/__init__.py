"""Expected performance: a model, a strategy and a cluster in, the forecast of a step out. `simulate` is the door."""

from lockstep.simulator.forecast import Communication, Forecast
from lockstep.simulator.preset import Degrees, preset
from lockstep.simulator.schedule import Schedule
from lockstep.simulator.simulate import Options, simulate
from lockstep.simulator.tree import StrategyTree

__all__ = ["Communication", "Degrees", "Forecast", "Options", "Schedule", "StrategyTree", "preset", "simulate"]
