"""Fits a run's model to its specification and healthy window; `effects.py` runs it off the event loop. Pure."""

import logging
from typing import TYPE_CHECKING

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.calibration.online import OnlineModel, Setup, fit
from lockstep.simulator.calibration.repair import Gain, MeasuredFault
from lockstep.simulator.calibration.repair import predict_gain as predict
from lockstep.simulator.spec import load_spec

if TYPE_CHECKING:
    from coordinator.settings.specs import SpecText
    from lockstep.simulator.calibration.measured import OperatorTimes, Window

_log = logging.getLogger(__name__)


def read_setup(spec: "SpecText") -> Setup:
    """Return the job of a specification; one that was set over HTTP must not name files.

    Raises
    ------
    LockstepError
        It cannot be used; the message names line, field, got and expected.
    """
    return Setup.of(load_spec(spec.text, spec.name, folder=spec.folder))


def fit_model(spec: "SpecText", window: "Window", operators: "OperatorTimes | None" = None) -> OnlineModel:
    """Return the run's model. Takes the time of a few tens of simulated steps.

    `operators` are the operator times of captured healthy ranks. If they are inconsistent with the specification, they
    are ignored, because a window alone is sufficient.

    Raises
    ------
    LockstepError
        The specification cannot be used, or does not match this run; the message states why.
    """
    setup = read_setup(spec)
    model = None
    if operators is not None:
        try:
            model = fit(setup, window, operators=operators)
        except ConfigError as error:
            _log.info("specification %s: operator times of ranks %s not used: %s", spec.name, operators.ranks, error)
    model = model or fit(setup, window)
    assert model.forecast is not None  # simulate here, so that no one simulates on the event loop
    return model


def predict_gain(model: OnlineModel, fault: MeasuredFault) -> Gain | None:
    """Return the gain of a repair; None if the model cannot predict it. Takes the time of one simulated step."""
    return predict(model, fault)
