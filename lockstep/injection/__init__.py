"""A mutating admission webhook for Kubernetes: training pods get the agent without a change to their manifests."""
