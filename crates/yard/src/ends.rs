//! TLS of both ends of a measurement: the perf protocol, one certificate, session tickets, key log.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::ServerSessionMemoryCache;
use rustls::{ClientConfig, ServerConfig};

use crate::certificate::Certificate;
use crate::error::Result;
use crate::options::Options;
use crate::tickets::{MAX_TICKETS, Watch};

/// draft-banks-quic-performance §2.1: the application protocol's name.
pub const ALPN: &[u8] = b"perf";

/// Sessions that a server remembers for resumption: as many as our client keeps tickets, and not
/// many more, since rustls searches all of them for each one used.
const SESSIONS: usize = MAX_TICKETS + 24;

/// A server's TLS: the perf protocol, session tickets, key log.
///
/// # Errors
/// The certificate and its key do not match, or secrets cannot be logged as requested.
pub fn server_tls(certificate: &Certificate, options: &Options) -> Result<ServerConfig> {
    let mut tls = certificate.server(options.provider())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.key_log = options.key_log()?;
    tls.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    // One per connection that may follow.
    tls.send_tls13_tickets = 1;
    Ok(tls)
}

/// A client's TLS: the perf protocol, key log, and a watch over its handshakes. One configuration
/// for all connections, or one for each if `--suite` names a mix; `make` builds one from a
/// provider.
///
/// # Errors
/// Secrets cannot be logged as requested, there are fewer connections than suites, or `make` fails.
pub fn client_tls(
    options: &Options,
    connections: usize,
    make: impl Fn(Arc<CryptoProvider>) -> Result<ClientConfig>,
) -> Result<(Vec<Arc<ClientConfig>>, Arc<Watch>)> {
    let watch = Arc::default();
    let mut made: Vec<Arc<ClientConfig>> = Vec::new();
    let mut each = Vec::new();
    for provider in options.providers(connections)? {
        let same = (made.iter()).find(|tls| Arc::ptr_eq(tls.crypto_provider(), &provider));
        let tls = match same {
            Some(tls) => Arc::clone(tls),
            None => {
                let mut tls = make(provider)?;
                tls.alpn_protocols = vec![ALPN.to_vec()];
                tls.key_log = options.key_log()?;
                Watch::also_over(&watch, &mut tls);
                let tls = Arc::new(tls);
                made.push(Arc::clone(&tls));
                tls
            }
        };
        each.push(tls);
    }
    Ok((each, watch))
}

/// RFC 9001 §4.6.1: allows early data; QUIC's own limits apply.
pub const EARLY_DATA: u32 = u32::MAX;
