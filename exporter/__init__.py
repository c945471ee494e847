"""One per node: reads the rings of the training processes, serves /metrics, and speaks to the coordinator by MQTT."""
