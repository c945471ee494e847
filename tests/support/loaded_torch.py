"""torch, with what its first optimizer imports, left out of garbage collections: for ranks whose garbage is not tested.

A rank of a few steps spends most of its time on importing torch, two fifths of which is the search for garbage among
what lasts: while it imports, and at its end.
"""

import gc

gc.disable()
import torch._dynamo  # noqa: F401, E402

gc.freeze()
gc.enable()
