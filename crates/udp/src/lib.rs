//! UDP sockets that send and receive bundles of datagrams.
