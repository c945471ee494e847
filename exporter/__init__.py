"""The node exporter, one per node: reads the ranks' rings, serves /metrics, and talks to the coordinator over MQTT."""
