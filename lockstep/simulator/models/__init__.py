"""Models: operators with their work and sizes, and builders of known architectures."""
