"""One file an area: a kind of input, and the entry points of the services that it goes through."""
