//! Two QUIC endpoints on a virtual, seeded, faulty network.
