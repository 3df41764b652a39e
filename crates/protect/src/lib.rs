//! QUIC packet protection over batches (RFC 9001 section 5).
