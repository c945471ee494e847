"""The version of every distribution and service, as shown by `lockstep --version`, metrics and reports."""

VERSION = "0.1.0"
