"""A mutating admission webhook of Kubernetes: training pods get the agent without a change of their manifests."""
