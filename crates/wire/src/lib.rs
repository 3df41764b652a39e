//! The bytes of QUIC (RFC 8999, RFC 9000 sections 12 to 20).
