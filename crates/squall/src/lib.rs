//! An asynchronous QUIC transport for the lowest CPU cost per byte.
