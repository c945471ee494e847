"""The version of every distribution and service: what `lockstep --version`, metrics and reports state."""

VERSION = "0.1.0"
