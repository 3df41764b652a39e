#!/usr/bin/env bash
# The entry point of the image `interop`: the network of the QUIC interop runner, then squall's endpoint, whose exit code
# is 127 for a test case that it does not support. /setup.sh and /wait-for-it.sh belong to the runner's image.
set -euo pipefail

/setup.sh
mkdir -p "${QLOGDIR:-/tmp}"
if [ "${ROLE:-}" = client ]; then
    /wait-for-it.sh sim:57832 -s -t 30
fi
exec /usr/local/bin/squall-endpoint
