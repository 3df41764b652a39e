//! The limits of a connection, each in one place.

use std::time::Duration;

use tokio::sync::Semaphore;

use crate::settings::Settings;

/// Generates setters named like their fields.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

/// Limits and switches of HTTP/3 connections, for servers and clients.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) max_field_section_size: u64,
    pub(crate) qpack_max_table_capacity: u64,
    pub(crate) qpack_blocked_streams: u64,
    pub(crate) qpack_encoder_table_capacity: u64,
    pub(crate) header_timeout: Duration,
    pub(crate) body_timeout: Option<Duration>,
    pub(crate) send_timeout: Option<Duration>,
    pub(crate) max_cancelled_requests: usize,
    pub(crate) enable_connect_protocol: bool,
    pub(crate) datagrams: bool,
    pub(crate) webtransport: u64,
    pub(crate) date: bool,
    pub(crate) informational: bool,
    pub(crate) peer_info: bool,
    pub(crate) keep_alive: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_field_section_size: 64 * 1024,
            qpack_max_table_capacity: 4096,
            qpack_blocked_streams: 16,
            qpack_encoder_table_capacity: 4096,
            header_timeout: Duration::from_secs(10),
            body_timeout: None,
            send_timeout: None,
            max_cancelled_requests: 1000,
            enable_connect_protocol: false,
            datagrams: false,
            webtransport: 0,
            date: true,
            informational: false,
            peer_info: false,
            keep_alive: true,
        }
    }
}

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// The largest field section that is accepted, in bytes: names, values, and 32 for each
        /// field (RFC 9114 §4.2.2). It is counted while fields are decoded. A server answers larger
        /// requests with 431. Default: 64 KiB.
        max_field_section_size: u64;
        /// Bytes of QPACK's dynamic table that the peer's encoder may use; 0 for none (RFC 9204
        /// §5). Default: 4096.
        qpack_max_table_capacity: u64;
        /// How many of the peer's streams may wait for entries of that table (RFC 9204 §5).
        /// Default: 16.
        qpack_blocked_streams: u64;
        /// The most bytes of QPACK's dynamic table that this end's encoder uses, if the peer allows
        /// that many; 0 for none. Default: 4096.
        qpack_encoder_table_capacity: u64;
        /// How long the head of a request may take to arrive, once its stream is open; after that
        /// the stream is reset. Default: 10 s.
        header_timeout: Duration;
        /// How long a server's service may wait for more of a request's body while nothing arrives.
        /// After that the body fails with [`Error::Timeout`](crate::Error::Timeout), and the
        /// service may answer, for example with 408 (RFC 9110 §15.5.9). If the service or its
        /// response fails instead, the stream is reset with H3_REQUEST_CANCELLED (RFC 9114 §8.1).
        /// The connection continues. CONNECT requests, whose tunnels may be silent, have no such
        /// limit. Default: none, since gRPC streams may be silent as well.
        body_timeout: Option<Duration>;
        /// How long a server's response may wait for credit from its client (RFC 9000 §4.1). After
        /// that the stream is reset with H3_REQUEST_CANCELLED (RFC 9114 §8.1), up to a quarter of
        /// this time later; the connection continues. A response does not wait for the client if
        /// its service has nothing to send, or if congestion control or other responses hold it
        /// back. CONNECT requests have no such limit. Default: none.
        send_timeout: Option<Duration>;
        /// How many more requests a client may cancel than it lets a server answer, as a defence
        /// against "rapid reset" (CVE-2023-44487). Beyond that the server closes the connection
        /// with H3_EXCESSIVE_LOAD. A request counts as cancelled if the client cancels it before
        /// the head of its response has been written to the stream, or if the response ends by
        /// [`send_timeout`](Self::send_timeout). Each response that is sent completely offsets one
        /// cancelled request. A request that is cancelled in between does not count: a client may
        /// stop reading event streams or downloads as often as it likes, since it has waited for
        /// the service, and no more of them run at a time than `max_concurrent_bidi_streams` of the
        /// transport allows. Default: 1000.
        max_cancelled_requests: usize;
        /// Whether a server accepts extended CONNECT (RFC 9220). Default: no.
        enable_connect_protocol: bool;
        /// Whether HTTP datagrams are accepted (RFC 9297). The transport must accept datagrams too,
        /// as it does by default. Default: no.
        datagrams: bool;
        /// How many WebTransport sessions a server accepts at a time on a connection; 0 for none.
        /// Requests for more are rejected with H3_REQUEST_REJECTED (draft-ietf-webtrans-http3
        /// §5.2). Includes extended CONNECT and HTTP datagrams. Default: 0.
        webtransport: u64;
        /// Whether a server adds a `date` field to responses that have none (RFC 9110 §6.6.1).
        /// Default: yes.
        date: bool;
        /// Whether requests at a server carry [`Informational`](crate::Informational), which sends
        /// responses before the final one, such as 103 Early Hints. Default: no.
        informational: bool;
        /// Whether requests at a server carry a [`server::Peer`](crate::server::Peer), which
        /// identifies the client, at the cost of a few allocations per request. Default: no.
        peer_info: bool;
        /// Whether a [`Client`](crate::client::Client) keeps a connection alive while requests are
        /// in flight, by a PING after each half of the idle timeout, so that a server may take
        /// longer than that to answer. For connections of your own, set
        /// [`keep_alive_with_streams`](squall::TransportConfig::keep_alive_with_streams).
        /// Default: yes.
        keep_alive: bool;
    }

    /// Whether extended CONNECT is accepted.
    pub(crate) const fn accepts_connect_protocol(&self) -> bool {
        self.enable_connect_protocol || self.webtransport > 0
    }

    /// Whether HTTP datagrams are accepted.
    pub(crate) const fn accepts_datagrams(&self) -> bool {
        self.datagrams || self.webtransport > 0
    }

    /// How many sessions the peer may have at a time.
    pub(crate) fn max_sessions(&self) -> usize {
        usize::try_from(self.webtransport)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS)
    }

    /// The SETTINGS to send to the peer.
    pub(crate) fn settings(&self, is_server: bool) -> Settings {
        Settings {
            qpack_max_table_capacity: self.qpack_max_table_capacity,
            qpack_blocked_streams: self.qpack_blocked_streams,
            max_field_section_size: Some(self.max_field_section_size),
            enable_connect_protocol: is_server && self.accepts_connect_protocol(),
            h3_datagram: self.accepts_datagrams(),
            webtransport_max_sessions: self.webtransport,
            only_new_webtransport: false,
        }
    }
}
