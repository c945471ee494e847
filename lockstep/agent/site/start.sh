#!/bin/sh
# Start COMMAND with the agent on PYTHONPATH, in front of what the image has there: sh start.sh COMMAND...
here=${0%/*}
PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} exec "$@"
