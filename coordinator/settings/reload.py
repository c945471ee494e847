"""Reading the configuration again while runs go on. What cannot be used changes nothing and is reported."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.settings.control import Control, ReloadResult, Settings
from coordinator.settings.specs import read_specs
from lockstep.contracts.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.settings.config import CoordinatorConfig

_log = logging.getLogger(__name__)


def read_settings(config: "CoordinatorConfig") -> Settings:
    """Return a configuration with what lies in the files that it names; blocking.

    Raises
    ------
    ConfigError
        A value or a file that cannot be used.
    """
    config.validate()
    specs = read_specs(config.simulation_file)
    return Settings(config=config, policy=config.policy(), token=config.read_token(), specs=specs)


class Reloader:
    """Reads with `reread` (blocking, may raise ConfigError) and calls `apply` on the event loop after a change.

    `changing` is the lock that everything holds which changes the policy.
    """

    def __init__(
        self,
        reread: "Callable[[], CoordinatorConfig]",
        control: Control,
        *,
        apply: Callable[[], None],
        now_s: Callable[[], float],
        changing: asyncio.Lock,
    ) -> None:
        self._reread = reread
        self._control = control
        self._apply = apply
        self._now_s = now_s
        self._changing = changing

    async def reload(self, who: str) -> ReloadResult:
        """Read again and apply what can be applied.

        Raises
        ------
        ConfigError
            The configuration cannot be used; the one from before is in force.
        """
        async with self._changing:
            try:
                settings = await asyncio.to_thread(lambda: read_settings(self._reread()))
                done = self._control.reconfigure(settings, who=who, now_s=self._now_s())
            except ConfigError as error:
                self._control.reload_failed()
                _log.error("reload by %s: %s; the previous configuration stays in force", who, error)
                raise
            self._apply()
        _log.info("reload by %s: applied %s", who, ", ".join(done.applied) or "nothing new")
        if done.needs_restart:
            _log.warning("reload by %s: %s need a restart and keep their values", who, ", ".join(done.needs_restart))
        return done

    async def on_signal(self) -> None:
        """Reload for a signal, whose sender waits for no answer: a failure has been logged already."""
        try:
            await self.reload("SIGHUP")
        except ConfigError:
            return
