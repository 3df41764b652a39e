"""The test cases of the QUIC interop runner, without containers and packet captures.

    command ─► peers      who takes part: how each is installed, and its program for either end
       │
       └─────► cell       one case between one client and one server
                 │
                 ├─ cases         files, network, and what must have been seen
                 ├─ certificates  an authority and a chain, by openssl
                 ├─ link          the network between the two: a UDP proxy on loopback
                 │    └─ packets  what crosses it, by what QUIC leaves in the open
                 └─ facts         what squall says of its connections
       │
       └─────► report     the matrix as text, Markdown or JSON

Each end is a process that follows the runner's contract: environment variables, a folder to serve
or to download to, and exit code 127 for a case that it does not support. Its last line on standard
error then says why. Packets pass through the proxy, which emulates the runner's network (10 Mbit/s,
15 ms, a queue of 25 packets) and records the packets that it sees.
"""
