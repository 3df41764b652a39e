//! Settings of endpoints and connections, with all limits in one place.

/// Generates a setter for each field: same name, takes the value, can be chained.
macro_rules! setters {
    ($($field:ident: $type:ty,)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

mod ablation;
mod client;
mod connection_ids;
mod endpoint;
mod limits;
mod server;
mod transport;

#[doc(hidden)]
pub use ablation::Ablation;
pub use client::ClientConfig;
pub use connection_ids::{ConnectionIdGenerator, QuicLb};
pub use endpoint::{EndpointConfig, worker_of};
pub(crate) use limits::{
    DEFAULT_INITIAL_RTT, LEAST_ORIGINAL_ID, LEAST_PACKETS_IN_FLIGHT, MAX_ACK_RANGES, MAX_COALESCED,
    MAX_CRYPTO_BUFFER_AFTER, MAX_CRYPTO_PIECES, MAX_EARLY_BYTES, MAX_EARLY_PACKETS, MAX_ID_GAPS,
    MAX_LOCAL_IDS, MAX_NEW_TOKENS, MAX_PATH_RESPONSES, MAX_PATHS, MAX_REMOTE_IDS,
    MAX_RETIRE_BACKLOG, MAX_RETIRED_IDS, MAX_STREAM_FRAGMENTS, MAX_STREAMS, MIN_ACK_DELAY,
    MIN_PROTECTED, MIN_UDP_PAYLOAD,
};
pub use server::ServerConfig;
pub use transport::{AckFrequencyConfig, AckFrequencyRequest, TransportConfig};
