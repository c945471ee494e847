"""One file an area: a kind of input, and the doors of the services that it comes through."""
