"""A cluster's worth of nodes against a real coordinator and a real mosquitto: `python -m benchmarks.soak`.

`job.py` is what the nodes measure, `wire.py` the few MQTT packets that they send, `nodes.py` plays them over real
connections, `services.py` runs broker and coordinator and meters them, `verdict.py` compares both ends.
"""
