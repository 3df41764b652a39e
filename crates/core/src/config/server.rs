//! Settings of server connections.

use std::sync::Arc;

use super::transport::TransportConfig;

/// Settings of server connections.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// An ordinary rustls configuration, built on a provider from `squall_tls`: a built-in one, or
    /// one that it wraps.
    pub tls: Arc<rustls::ServerConfig>,
    /// Transport settings.
    pub transport: Arc<TransportConfig>,
}

impl ServerConfig {
    /// These TLS settings, with the default transport settings.
    #[must_use]
    pub fn new(tls: impl Into<Arc<rustls::ServerConfig>>) -> Self {
        Self {
            tls: tls.into(),
            transport: Arc::default(),
        }
    }

    /// Sets the transport settings.
    #[must_use]
    pub fn transport(mut self, transport: impl Into<Arc<TransportConfig>>) -> Self {
        self.transport = transport.into();
        self
    }
}
