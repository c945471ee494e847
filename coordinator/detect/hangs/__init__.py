"""Hangs: which ranks have not arrived, and which ranks wait for which."""
