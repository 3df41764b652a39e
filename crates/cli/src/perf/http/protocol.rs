//! The three protocols, and the load for each of them.

use std::fmt;

use http::Version;
use serde::Serialize;

/// A version of HTTP and its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Protocol {
    /// HTTP/3 over QUIC.
    H3,
    /// HTTP/2 over TLS over TCP.
    H2,
    /// HTTP/1.1 over TLS over TCP.
    H1,
}

impl Protocol {
    pub(super) const ALL: [Self; 3] = [Self::H3, Self::H2, Self::H1];

    /// The name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::H3 => "h3",
            Self::H2 => "h2",
            Self::H1 => "h1",
        }
    }

    /// The application protocol's name in TLS (RFC 9114 §3.1, RFC 9113 §3.2, RFC 7301 §6).
    pub(super) fn alpn(self) -> &'static [u8] {
        match self {
            Self::H3 => b"h3",
            Self::H2 => b"h2",
            Self::H1 => b"http/1.1",
        }
    }

    /// The version in a response of this protocol.
    pub(super) fn version(self) -> Version {
        match self {
            Self::H3 => Version::HTTP_3,
            Self::H2 => Version::HTTP_2,
            Self::H1 => Version::HTTP_11,
        }
    }

    /// The connections of a measurement of requests.
    pub(super) fn shape(self) -> Shape {
        let (connections, streams) = match self {
            Self::H3 | Self::H2 => (10, 10),
            // One request at a time: without pipelining, a connection has no more.
            Self::H1 => (100, 1),
        };
        Shape {
            connections,
            streams,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Connections, and the requests that are in flight on each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) connections: usize,
    pub(super) streams: usize,
}

impl Shape {
    /// Requests in flight on all connections.
    pub(super) fn in_flight(self) -> usize {
        self.connections * self.streams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protocol_keeps_the_same_number_of_requests_in_flight() {
        for protocol in Protocol::ALL {
            assert_eq!(protocol.shape().in_flight(), 100, "{protocol}");
        }
    }
}
