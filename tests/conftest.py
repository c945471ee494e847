"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("lockstep", deadline=None)  # seconds say what else the machine does, not what is right
settings.load_profile("lockstep")
