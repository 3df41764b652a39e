//! The sans-I/O QUIC endpoint and connection.
